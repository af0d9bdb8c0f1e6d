"""Parts that are wrong by a small difference: the text of a right one, in which a few lines are other ones."""

import itertools
import linecache
from pathlib import Path

NUMBERS = itertools.count()


def differing(file, name, *changes):
    """The class of this name in a file, with changes made to its text: (old, new) each."""
    source = Path(file).read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    title = f"<difference {next(NUMBERS)}>"
    linecache.cache[title] = (len(source), None, source.splitlines(keepends=True), title)
    space = {"__name__": "differences"}
    exec(compile(source, title, "exec"), space)
    return space[name]
