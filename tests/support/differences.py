"""Parts that are wrong by a small difference: the text of a right one, in which a few lines are other ones."""

from pathlib import Path

from tests.support.cells import part_in


def differing(file, name, *changes):
    """The class of this name in a file, with changes made to its text: (old, new) each."""
    source = Path(file).read_text()
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return part_in(source, name)
