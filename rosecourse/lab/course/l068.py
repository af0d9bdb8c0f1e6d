"""Lesson 068, delivery and start: readers are woken in turns, and a request starts without a pause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..checking.costs import Bound
from ..checking.delivery_stories import DeliveryStories, Played
from ..checking.mailboxes import Box, HandedByHand
from . import ends, starts
from .form import LINE, MOMENTS, Bug, Course, Exercise
from .scenes import Played as Hunted
from .scenes import Truth

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyDelivery",
    difficulty=2,
    minutes=30,
    begins_as=starts.Delivery,
    ends_as=ends.Delivery,
    text=(
        "The cell holds a delivery that is right, and wakes a reader for each token. Let it wake the readers in turns: "
        "at most `most_wakes` of them at a hand-over, however many have got something.\n\n"
        "After each step the engine calls `hand_over(items)` with all that the step has made: pairs of a mailbox and "
        "an item, in order. `mailbox.put(item)` lays the item down, and a reader who is awake finds it there. "
        "`mailbox.wake()` lets a sleeping reader look; it reads everything that lies there. Several requests may "
        "have the same mailbox. When there is no more work, the engine calls `flush()`.\n\n"
        "The engine's own part counts time where yours counts hand-overs: it wakes so many readers a second, because "
        "steps may be short or long. A number of readers at each hand-over is the same on every machine. So `check` "
        "needs no clock: it has mailboxes that note each call, and then lets threads read from a whole engine."
    ),
    docstring=(
        "How tokens get from the thread that steps to their readers.\n\n"
        "Goal: each item is put at the hand-over that it came with, once, and in order. A reader waits if something "
        "has been put for it since it was last woken. A hand-over wakes at most `most_wakes` readers, none of them "
        "twice, and only such as wait. If r readers wait, each of them is woken within r / `most_wakes` hand-overs, "
        "rounded up, counting the one that brought its item and those that bring nothing. After `flush` nobody waits. "
        "The delivery keeps nothing of a reader who does not wait."
    ),
    look=(
        "A reader has been woken, and then the next token comes for it. Which place in the queue does it get? And "
        "which place does a reader have who has got a second token while it waits for the first?"
    ),
    do=(
        "Keep the mailboxes whose readers wait, in the order in which they began to wait. A `dict` does that: a key "
        "that is there already keeps its place, a new one comes last, and none is there twice.\n\n"
        "`hand_over` first puts all items, and enters each mailbox. Then it takes the first `most_wakes` mailboxes out "
        "and wakes them. A hand-over without items does the same with those who still wait.\n\n"
        "`flush` takes out and wakes all of them. A mailbox can be empty and still be a mailbox: `if mailbox:` asks "
        "whether something lies there."
    ),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------

NAMES = "ABCDEFGHIJ"
BURSTS = (  # reader -> how many tokens it asks for; each burst comes when the one before has ended
    dict.fromkeys(NAMES, 6),
    {"A": 4, "D": 12, "J": 10, "G": 8},
    {"I": 5, "J": 7, "B": 9},
)


def scene(engine: InferenceEngine) -> Iterator[dict[str, Any]]:
    served = HandedByHand(engine)
    readers = {name: Box(name) for name in NAMES}
    yield readers
    for burst in BURSTS:
        yield from _served(served, readers, burst)


def _served(served: HandedByHand, readers: dict[str, Box], burst: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Requests that come together, step by step until all have ended."""
    for name, most in burst.items():
        number = NAMES.index(name)
        served.submit(readers[name], [10 * number + 3] * (number + 2), most)
    while served.scheduler.has_work:
        served.step()
        yield readers


def truth(hunt: Hunted, model: Model) -> Truth:
    right, broken = hunt.engines(model)
    behind: list[tuple[int, str]] = []
    moments = zip(hunt.scene(right), hunt.scene(broken), strict=True)
    for moment, (ours, theirs) in enumerate(moments):
        behind += [(moment, name) for name in NAMES if len(theirs[name].read) < len(ours[name].read)]
    first, reader = behind[0]
    return {"reader": {reader}, "moment": {str(first)}, "other": _who_hears_nothing(hunt, model) - {reader}}


def _who_hears_nothing(hunt: Hunted, model: Model) -> set[str]:
    """The readers who would not be woken if a further request of each came after the scene."""
    _, broken = hunt.engines(model)
    *_, readers = hunt.scene(broken)
    before = {name: box.wakes for name, box in readers.items()}
    for _ in _served(HandedByHand(broken), readers, dict.fromkeys(NAMES, 1)):
        pass
    return {name for name, box in readers.items() if box.wakes == before[name]}


COLLEAGUES_FILE = '''\
from itertools import chain


class NightPorter:
    """Letters go into the pigeonholes at once. Guests with letters
    are noted in the book, and called page by page. A page of the
    book has eight lines, and in each round one page is called."""

    lines = 8

    def __init__(self, config):
        self.pages = []
        self.noted = set()  # whoever stands on a page

    def hand_over(self, post):
        for guest, letter in post:
            guest.put(letter)
            if guest not in self.noted:
                self.note(guest)
        if self.pages:
            page = self.pages.pop(0)
            self.noted -= set(page)
            self.call(page)

    def note(self, guest):
        if not self.pages or len(self.pages[-1]) >= self.lines:
            self.pages.append([])
        self.pages[-1].append(guest)
        self.noted.add(guest)

    def call(self, guests):
        for guest in guests:
            guest.wake()

    def flush(self):
        self.call(chain.from_iterable(self.pages))
        self.pages = []
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "Ten readers are served together, and each reads all of its tokens. When every request has ended, some readers "
        "ask again. One of these gets nothing any more: its request runs to its end, and its reader sleeps for ever. "
        "No other reader is late. With eight readers or fewer it never happens."
    ),
    tools=(
        "The scene hands each step's tokens to the part, `engine.delivery`, and calls `flush` when no work is left.",
    ),
    questions={
        "reader": "the reader that gets nothing any more",
        "moment": "the first moment at which it is behind",
        "other": "another reader that gets nothing either if it asks once more",
        "line": LINE,
    },
    hints={
        "reader": "At the end of the scene, look for a mailbox in which something lies.",
        "moment": f"Compare `len(box.read)` in both engines. {MOMENTS}",
        "other": "What does the colleague's delivery know of the readers when nothing is left to do?",
        "line": "Which readers are on a page, and which are noted as if they were? Look at both after each moment, and "
        "at what happens between the last step of the first requests and the first one of the next.",
    },
    source=COLLEAGUES_FILE,
    fault="        self.call(chain.from_iterable(self.pages))\n        self.pages = []\n",
    mended="        self.call(chain.from_iterable(self.pages))\n        self.pages = []\n        self.noted.clear()\n",
    config=EngineConfig(block_size=8, max_batch_size=10, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    yields=(
        "the readers' mailboxes by name: at moment 0, and after each step. `box.items` waits there, `box.read` has "
        "been read, and `box.wakes` counts the wakes. A woken reader reads everything and sleeps again."
    ),
    explanation=(
        "The book says in two places which guests are to be called: on the pages, and in the set of noted guests. A "
        "hand-over changes both, and `flush` changes only the pages. A guest that `flush` has called stays in the set "
        "for ever. When its next letter comes, the porter believes that it is on a page already, and calls nobody. "
        "With eight readers or fewer the pages are empty when the work ends, and `flush` has nothing to do. With ten, "
        "two are left, and which two depends on whose turn it was. What is stored twice must be changed in one place: "
        "a queue that knows its members, such as a `dict`, needs no second book."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def wakes(played: Played) -> int:
    return max(model.most for model in played.engines)


def wakes_for_nothing(played: Played) -> int:
    return sum(model.for_nothing for model in played.engines)


COURSE = Course(
    number="068",
    world=DeliveryStories,
    exercise=EXERCISE,
    bug=BUG,
    idea=(
        Bound("wakes at one hand-over", (), wakes),
        Bound("wakes of readers for whom nothing had come", (), wakes_for_nothing),
    ),
    unseen="how long readers wait for Python's one lock, and for how long they keep it",
)
