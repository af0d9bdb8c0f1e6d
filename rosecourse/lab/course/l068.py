"""Lesson 068, delivery and start: readers are woken in turns, and a request starts without a pause."""

from collections.abc import Mapping
from typing import Any

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...engine.stepper import End, NewTokenItem
from ...request.session import InferenceSession
from ..checking.costs import Bound
from ..checking.deliveries import Box, DeliveryStories, InTurns
from .form import LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Truth

NAMES = "ABCDEFGHIJ"
BURSTS = (  # reader -> how many tokens it asks for; each burst comes when the one before has ended
    dict.fromkeys(NAMES, 6),
    {"A": 4, "D": 12, "J": 10, "G": 8},
    {"I": 5, "J": 7, "B": 9},
)


class HandedByHand:
    """A scheduler whose steps are handed to the engine's delivery, as the thread of a `SchedulerManager` does it."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine, self.scheduler = engine, OnlineScheduler(engine)
        self.boxes: dict[InferenceSession, Box] = {}  # of the requests that have not ended

    def submit(self, box: Box, prompt: list[int], new_tokens: int) -> None:
        session = self.engine.new_session(prompt, SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False))
        self.scheduler.submit(session)
        self.boxes[session] = box

    def step(self) -> None:
        """One step, and what it has made is handed over. Where no work is left, the readers hear of it."""
        new_tokens = self.scheduler.step()
        last = {session: number for number, (session, _) in enumerate(new_tokens)}
        handed: list[tuple[Any, Any]] = []
        for number, (session, token_id) in enumerate(new_tokens):
            reason = session.finish_reason if last[session] == number else None
            handed.append((self.boxes[session], NewTokenItem(session, token_id, reason)))
            if reason is not None:
                handed.append((self.boxes.pop(session), End(session)))
        self.engine.delivery.hand_over(handed)
        if not self.scheduler.has_work:
            self.engine.delivery.flush()


def scene(engine: InferenceEngine) -> Moments:
    served = HandedByHand(engine)
    readers = {name: Box(name) for name in NAMES}
    yield readers
    for burst in BURSTS:
        yield from _served(served, readers, burst)


def _served(served: HandedByHand, readers: dict[str, Box], burst: Mapping[str, int]) -> Moments:
    """Requests that come together, step by step until all have ended."""
    for name, most in burst.items():
        number = NAMES.index(name)
        served.submit(readers[name], [10 * number + 3] * (number + 2), most)
    while served.scheduler.has_work:
        served.step()
        yield readers


def truth(hunt: Played) -> Truth:
    right, broken = hunt.engines()
    behind: list[tuple[int, str]] = []
    moments = zip(hunt.scene(right), hunt.scene(broken), strict=True)
    for moment, (ours, theirs) in enumerate(moments):
        behind += [(moment, name) for name in NAMES if len(theirs[name].read) < len(ours[name].read)]
    first, reader = behind[0]
    return {"reader": {reader}, "moment": {str(first)}, "other": _who_hears_nothing(hunt) - {reader}}


def _who_hears_nothing(hunt: Played) -> set[str]:
    """The readers who would not be woken if a further request of each came after the scene."""
    _, broken = hunt.engines()
    *_, readers = hunt.scene(broken)
    before = {name: box.wakes for name, box in readers.items()}
    for _ in _served(HandedByHand(broken), readers, dict.fromkeys(NAMES, 1)):
        pass
    return {name for name, box in readers.items() if box.wakes == before[name]}


COURSE = Course(
    world=DeliveryStories,
    beside=InTurns,
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
    source='''\
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
''',
    fault="        self.call(chain.from_iterable(self.pages))\n        self.pages = []\n",
    mended="        self.call(chain.from_iterable(self.pages))\n        self.pages = []\n        self.noted.clear()\n",
    config=small(8, 10),
    scene=scene,
    truth=truth,
    yields=(
        "the readers' mailboxes by name: at moment 0, and after each step. `box.items` waits there, `box.read` has "
        "been read, and `box.wakes` counts the wakes. A woken reader reads everything and sleeps again."
    ),
    idea=(
        Bound("wakes at one hand-over", (), "most"),
        Bound("wakes of readers for whom nothing had come", (), "for_nothing"),
    ),
    unseen="how long readers wait for Python's one lock, and for how long they keep it",
)
