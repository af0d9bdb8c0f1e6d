"""Lesson 067, one step behind: the host reads a step's tokens while the device runs the next one."""

from types import SimpleNamespace
from typing import Any

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ..checking.pipelines import IDEA, PipelineStories
from .form import COMPARE_TOKENS, LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Sessions, Truth, side_by_side


def scene(engine: InferenceEngine) -> Moments:
    scheduler = OnlineScheduler(engine)
    sessions: Sessions = {}
    for name, length, new_tokens in (("A", 5, 8), ("B", 9, 30), ("C", 3, 14)):
        sessions[name] = _submit(engine, scheduler, length, new_tokens)
    for moment in range(20):
        yield sessions
        sessions = {name: session for name, session in sessions.items() if not session.finished}
        if moment == 4:
            sessions["D"] = _submit(engine, scheduler, 7, 11)
        scheduler.step()


def _submit(engine: InferenceEngine, scheduler: OnlineScheduler, length: int, new_tokens: int) -> Any:
    params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False, temperature=1.2, seed=length)
    session = engine.new_session([10 * length + 3] * length, params)
    scheduler.submit(session)
    return session


def truth(hunt: Played) -> Truth:
    answer: Truth = {}
    wrong = -1  # the last word of the session that ends
    for moment, _, ours, _, theirs in side_by_side(hunt):
        if answer:
            whose = {name for name, session in ours.items() if session.token_ids[-1] == wrong}
            return answer | {"whose": whose}
        ended = [name for name, session in ours.items() if session.token_ids != theirs[name].token_ids]
        if ended:
            (name,) = [name for name in ended if ours[name].finished]
            wrong = theirs[name].token_ids[-1]
            answer = {"session": {name}, "moment": {str(moment)}}
    raise AssertionError("the broken part makes the right tokens: it is not broken")


COURSE = Course(
    world=PipelineStories,
    beside=SimpleNamespace(idle_waits=0, copies=1, untold=0),
    symptom=(
        "Requests of different lengths are served together. Now and then one of them ends with a wrong word, which "
        "another says a step later. Some of the others have one wrong word in the middle, and are right again from the "
        "next word on. Alone, each request is right."
    ),
    tools=(
        "Tokens arrive one moment after their step was launched. A session that has finished is in the `dict` once "
        "more, at its last moment.",
        "`engine.pipeline.in_flight` are the steps under way: `sessions` in the order of their rows, and `pending`, "
        "what the pipeline has put there.",
    ),
    questions={
        "session": "the session that ends with a word that is not its own",
        "moment": "the moment at which it has that word",
        "whose": "the session whose word it is",
        "line": LINE,
    },
    hints={
        "session": COMPARE_TOKENS,
        "moment": MOMENTS,
        "whose": "Look for the same word in the right engine, one moment later.",
        "line": "How many steps are in flight at that moment, and what memory does each of them have? `data_ptr()` of "
        "a tensor is its address.",
    },
    source='''\
from collections import deque
from contextlib import suppress
from itertools import cycle

import torch

from rosecourse.lab.checking.events import events_for


class Ferry:
    """Two hulls carry the words: one is loaded while the other is read."""

    steps_ahead = 1

    def __init__(self, step, kv, config):
        self.step, self.horn = step, events_for(kv.device)
        self.in_flight = deque()
        pinned = kv.device.type == "cuda"
        self.hulls = deque(
            torch.zeros(config.max_batch_size, dtype=torch.long, pin_memory=pinned)
            for _ in "ab"
        )
        self.seats, self.boats = 0, cycle(self.hulls)

    def boat(self, seats):
        if seats != self.seats:
            self.seats, self.boats = seats, cycle([hull[:seats] for hull in self.hulls])
        return next(self.boats)

    def launch(self, batch):
        words = self.step.run(batch).tokens
        boat, horn = self.boat(words.shape[0]), self.horn()
        boat.copy_(words, non_blocking=True)
        horn.record()
        batch.pending = (boat, horn)
        self.in_flight.append(batch)

    def land(self):
        voyage = self.in_flight[0]
        boat, horn = voyage.pending
        horn.synchronize()
        words = boat.tolist()
        del self.in_flight[0]
        if len(self.in_flight) == 0:
            self.step.has_read(voyage, words)
        return voyage, words

    def abandon(self):
        for voyage in self.in_flight:
            with suppress(RuntimeError):
                voyage.pending[1].synchronize()
        self.in_flight.clear()
        self.step.rows.forget()
''',
    fault="        if seats != self.seats:\n"
    "            self.seats, self.boats = seats, cycle([hull[:seats] for hull in self.hulls])\n"
    "        return next(self.boats)\n",
    mended="        self.hulls.rotate()\n        return self.hulls[0][:seats]\n",
    config=small(8, 4),
    scene=scene,
    truth=truth,
    idea=IDEA,
    unseen="memory that is not pinned, for which a copy waits, and how long the device and the host take",
)
