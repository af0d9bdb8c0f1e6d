"""The part of 075: a matcher of stop strings. A story is a text in pieces, and its stop strings."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import must
from ..apart import STEP


class StopStory(NamedTuple):
    stops: tuple[str, ...]
    pieces: tuple[str, ...]
    sizes: str = ""


class Told:
    """What has happened so far, for a verdict."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.listen: Callable[[list[str]], object] = lambda lines: None

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.listen(self.lines)

    def picture(self) -> list[str]:
        return []


class StopStories:
    """Short texts of few letters, so that stop strings begin, break off, overlap and end in other places."""

    count = 400
    holds = "each piece lets through what can be no stop string any more, and nothing after one"

    def number(self, n: int) -> StopStory:
        dice = random.Random(n)

        def words(most: int, least: int, longest: int) -> tuple[str, ...]:
            count = dice.randint(0 if least == 0 else 1, most)
            return tuple("".join(dice.choices("abc", k=dice.randint(least, longest))) for _ in range(count))

        return StopStory(words(2, 1, 4), (*words(8, 0, 3), "a"))

    def play(self, part: type, story: StopStory, tell: Callable[[Any], object]) -> None:
        """Push the pieces up to the first stop string. Raises `Wrong`, and whatever the part raises."""
        told, text, sent = Told(), "", ""
        tell(told)
        told.say(f"stop strings: {', '.join(map(repr, story.stops)) or 'none'}")
        matcher = part(list(story.stops))
        for number, piece in enumerate(story.pieces, start=1):
            last = number == len(story.pieces)
            told.say(f"push({piece!r}{', last=True' * last})")
            STEP.begin()
            answer = matcher.push(piece, last)
            STEP.end()
            must("what `push` returns", "str", type(answer).__name__)
            text, sent = text + piece, sent + answer
            right, found = may_be_sent(text, story.stops, last)
            must(f"of {text!r}, what has been sent", repr(right), repr(sent))
            must(f"after {text!r}, `found`", found, matcher.found)
            if found:
                return

    def smaller(self, story: StopStory) -> Iterator[StopStory]:
        """Stories without a stop string, a piece or a letter."""
        yield from (story._replace(stops=stops) for stops in _shorter(story.stops, 1))
        yield from (story._replace(pieces=pieces) for pieces in _shorter(story.pieces, 0))


def _shorter(words: tuple[str, ...], least: int) -> Iterator[tuple[str, ...]]:
    """Without a word, or without a letter at the end of one. least: the letters that each keeps."""
    for n, word in enumerate(words):
        yield words[:n] + words[n + 1 :]
        for shorter in (word[1:], word[:-1]) if len(word) > least else ():
            yield (*words[:n], shorter, *words[n + 1 :])


def may_be_sent(text: str, stops: tuple[str, ...], last: bool) -> tuple[str, bool]:
    """What may be sent of a text so far, and whether a stop string is in it: letter by letter.

    Of the stop strings that end first the longest counts.
    """
    for end in range(1, len(text) + 1):
        if ended := [len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(ended)], True
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return text[: len(text) - (0 if last else max(begun, default=0))], False
