"""The search for the smallest story in which a part goes wrong."""

import itertools
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from . import Wrong
from .kernel_memory import outside_memory
from .stories import Stories

HERE = str(Path(__file__).parent)
LESSONS = str(Path(__file__).parents[2] / "lessons")
INSTALLED = (str(Path(__file__).parents[2]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
MOST_TRIES = 400  # plays of smaller stories
Found = TypeVar("Found")


@dataclass(frozen=True)
class Outcome:
    """What went wrong in a story. lines: the story; sizes: of it, in words. fact: what must hold and what is found.

    place: the part's line that raised or hung. picture: the blocks before and after the step, a line each.
    """

    sizes: str
    lines: tuple[str, ...]
    fact: str
    place: str = ""
    picture: tuple[str, ...] = ()

    @property
    def operations(self) -> int:
        return sum(1 for _ in itertools.groupby(self.lines))


def outcome(
    stories: Stories, make: Callable[[], type], story: Any, listen: Callable[[list[str]], object] | None = None
) -> Outcome | None:
    """What goes wrong when a part, made anew, lives through a story; None if all is right. listen: gets its lines."""
    told: list[Any] = []

    def tell(played: Any) -> None:
        told.append(played)
        played.listen = listen or played.listen

    try:
        with torch.inference_mode():
            stories.play(make(), story, tell)
    except BaseException as error:  # `SystemExit` and `KeyboardInterrupt` are the part's own here
        picture = _picture(told) if isinstance(error, Wrong) else ()
        return told_of(error, str(story.sizes), tuple(told[0].lines) if told else (), picture)
    return None


def told_of(
    error: BaseException, sizes: str = "", lines: tuple[str, ...] = (), picture: tuple[str, ...] = ()
) -> Outcome:
    """What went wrong, in a story or without one."""
    if isinstance(error, Wrong):
        return Outcome(sizes, lines, str(error), "", picture)
    outside = outside_memory(error)
    fact = f"the part raised {type(error).__name__}: {error}" if outside is None else f"the kernel: {outside}"
    return Outcome(sizes, lines, fact, _place_in(error.__traceback__), picture)


def _picture(told: list[Any]) -> tuple[str, ...]:
    try:
        return tuple(told[0].picture())
    except Exception:  # of books that a part has broken
        return ()


def _place_in(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    return _place([(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames)])


def place_in_trace(trace: str) -> str:
    """The part's line in the newest trace of `faulthandler`."""
    last = re.split(r"^(?:Current thread|Thread) ", trace, flags=re.MULTILINE)[-1]
    return _place([(found["file"], int(found["line"]), found["name"]) for found in FRAME.finditer(last)])


def place_now() -> str:
    """The part's line that is under way."""
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(traceback.extract_stack())]
    return _place([*itertools.dropwhile(lambda frame: frame[0].startswith(HERE), frames)])


def _place(frames: list[tuple[str, int, str]]) -> str:
    """The learner's innermost line; where there is none, that of a part of the ladder. frames: the innermost first."""
    inner = itertools.dropwhile(_is_here, frames)  # of a part that ends the process, our own function ends it
    frames = list(itertools.takewhile(lambda frame: not _is_here(frame), inner))
    own = [frame for frame in frames if not frame[0].startswith((*INSTALLED, "<frozen"))]
    own += [frame for frame in frames if frame[0].startswith(LESSONS)]
    if not own:
        return ""
    file, line, name = own[0]
    text = linecache.getline(file, line).strip()
    return f"line {line}, in {name}{f': {text}' if text else ''}"


def _is_here(frame: tuple[str, int, str]) -> bool:
    return frame[0].startswith(HERE)


def first_wrong(stories: Stories, make: Callable[[], type], note: Callable[[Any], None]) -> tuple[Any, Outcome] | None:
    """The first story that goes wrong, and how. note: keeps the story that is being played."""
    for n in range(stories.count):
        story = stories.number(n)
        note(story)
        found = outcome(stories, make, story)
        if found:
            return story, found
    return None


def smallest(
    stories: Stories, story: Any, found: Found, try_it: Callable[[Any], Found | None], tries: int = MOST_TRIES
) -> tuple[Any, Found]:
    """What is left of a story that goes wrong when nothing can be left out or made smaller any more."""
    left = itertools.repeat(None, tries)
    while True:
        for smaller, _ in zip(stories.smaller(story), left, strict=False):
            now = try_it(smaller)
            if now:
                story, found = smaller, now
                break
        else:
            return story, found
