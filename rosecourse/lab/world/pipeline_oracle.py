"""The oracle of pipelines: an engine with the learner's, on a device that is late, beside one that waits in each step.

It is driven step by step, as the oracles of other parts are, or by a scheduler that serves requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...config import EngineConfig
from ...decode.inputs import Batch
from ...engine.engine import InferenceEngine
from ...errors import BlockError
from ...lessons import lesson
from ...request.session import InferenceSession
from .books import ONE_TABLE_BOOKS
from .causes import Cause
from .fault import Fault, PartIsWrong
from .flight_log import FlightLog, FlightsSeen
from .interrupts import Interrupt
from .late_device import LateDevice
from .layout import ONE_TABLE
from .learner import Learner
from .oracle import Around, Oracle
from .pipeline_guard import WatchedPipeline
from .pool import Sizes, Tracked
from .runner_oracle import GREEDY, params_of
from .server import MOST_STEPS, DeviceFailed, NeverEnds, Server
from .tiny_gpt2 import attentive_gpt2, nan_at_position

LATER = "the tokens of each step were right: something else of it has reached the engine wrongly"
Script = Callable[[Server], object]


@dataclass(frozen=True)
class Flights(Sizes):
    """pace: of the late device. nan_at: a position from which no token can be chosen; 0 for none. cached: whether there
    is a prefix cache."""

    pace: str = "late"
    nan_at: int = 0
    cached: bool = False

    def config(self) -> EngineConfig:
        return replace(super().config(), prefix_cache=self.cached)


class PipelineOracle(Oracle):
    """For a part `pipeline`."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        self.learner, self.sizes, self.steps = learner, sizes, 0
        self.sessions: list[Tracked] = []
        self.started = 0
        self.log = FlightLog(LateDevice(getattr(sizes, "pace", "late")))
        self._twins: dict[int, InferenceSession] = {}  # number -> the twin's session
        log, rung = self.log, lesson("067")
        model = attentive_gpt2(sizes.layers, sizes.heads, sizes.head_dim, sizes.max_seq_len)
        if nan_at := getattr(sizes, "nan_at", 0):
            model = nan_at_position(model, nan_at)

        def watched(step: Any, kv: Any, config: EngineConfig) -> WatchedPipeline:
            return WatchedPipeline(learner, step, kv, config, log, model.shape.vocab_size)

        self._mine = InferenceEngine(model, sizes.config(), rung.after.with_(pipeline=watched))
        self._right = InferenceEngine(model, sizes.config(), rung.after.with_(pipeline=rung.before.pipeline))
        self.part = self._mine.pipeline.made
        self.kv = self._mine.kv

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int, sampled: bool = False) -> Tracked:
        """A new session of `length` tokens, one at least, and the token that comes after them."""
        params = params_of(self.started) if sampled else GREEDY
        prompt = [(7 * self.started + 3 * n) % 90 for n in range(max(1, length))]
        params = replace(params, max_new_tokens=self.sizes.max_seq_len - len(prompt))
        mine, right = (engine.new_session(prompt, params) for engine in (self._mine, self._right))
        for engine, session in ((self._mine, mine), (self._right, right)):
            engine.take_tokens([session], engine.prefill([session]))
        return self._tracked(mine, right, len(prompt))

    def fork(self, parent: Tracked) -> Tracked:
        """A sibling that shares all blocks, and goes on with another word."""
        word, twin = 90 - self.started % 7, self._twins[parent.number]
        mine, right = self._of_mine(self._mine.fork, parent.session), self._right.fork(twin)
        mine.token_ids[-1] = right.token_ids[-1] = word
        return self._tracked(mine, right, parent.length)

    def free(self, tracked: Tracked) -> None:
        self.sessions.remove(tracked)
        self._of_mine(self._mine.free, tracked.session)
        self._right.free(self._twins[tracked.number])

    def _tracked(self, mine: InferenceSession, right: InferenceSession, length: int) -> Tracked:
        self._twins[self.started] = right
        tracked = self._track(mine, torch.empty(2, 0, length, 0, 0))
        self.log.name(mine, tracked.name)
        return tracked

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, *batch: Tracked, around: Around = nullcontext) -> None:
        """A step of a batch is launched, and all land but those that the host may be behind; then tokens are compared.

        around: makes a context in which the part is called.
        """
        self.steps += 1
        self.work(batch, around)
        for t in batch:
            t.dense = torch.empty(2, 0, t.length + 1, 0, 0)
        self._compare(self.sessions, behind=1)

    def work(self, batch: Sequence[Tracked], around: Around = nullcontext) -> torch.Tensor:
        self.log.begin()
        self._right.launch([self._twins[t.number] for t in batch])
        self._right.land()
        with around():
            self._of_mine(self._mine.launch, [t.session for t in batch])
            while self._mine.num_in_flight > self._mine.pipeline.steps_ahead:
                self._of_mine(self._mine.land)
        return torch.empty(0)

    def settle(self) -> None:
        """All steps land, and every token is there."""
        self._of_mine(self._mine.settle)
        self._compare(self.sessions, behind=0)

    def interrupt_landing(self, failure: BaseException) -> None:
        """The wait of a landing fails, and the same step lands a moment later."""
        if not self._mine.num_in_flight:
            return
        self.log.device.failure = failure
        try:
            self._of_mine(self._mine.land)
        except (Interrupt, RuntimeError) as error:
            if error is not failure:
                raise
        self.log.device.failure = None
        if self._mine.num_in_flight:
            self._of_mine(self._mine.land)

    def failing_launch(self, *batch: Tracked) -> None:
        """A step that cannot be launched: nothing has changed."""
        failure = DeviceFailed("the step could not be launched")
        self.log.failure = failure
        try:
            self._of_mine(self._mine.launch, [t.session for t in batch])
        except DeviceFailed as error:
            if error is not failure:
                raise
        self.log.failure = None
        self._compare(self.sessions, behind=1)

    def abandon(self, *batch: Tracked, dead: BaseException | None = None) -> None:
        """Nobody wants what is in flight, or the device is dead: the sessions in flight are computed anew."""
        sessions = [t.session for t in batch if self._mine.is_in_flight(t.session)]
        self.log.device.dead = dead
        self._of_mine(self._mine.drop)
        self.log.device.revive()
        for session in sessions:
            self._mine.free(session)
        for t in batch:
            if t.session in sessions:
                logits = self._mine.prefill([t.session])
                self._mine.take_tokens([t.session], logits)
        self._compare(batch, behind=0)

    def _of_mine(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A call of the engine whose pipeline is the learner's: the first fault counts, whatever comes of it."""
        try:
            return call(*arguments)
        finally:
            if self.log.fault is not None:
                raise PartIsWrong(self.log.fault)

    def _compare(self, batch: Iterable[Tracked], behind: int) -> None:
        for t in batch:
            found, expected = t.session.token_ids, self._twins[t.number].token_ids
            late = behind if self._mine.is_in_flight(t.session) else 0
            if found != expected[: len(expected) - late]:
                self._differ(t.name, found, expected)

    def _differ(self, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
        pairs = enumerate(zip(found, expected, strict=False))
        place = next((n for n, (one, other) in pairs if one != other), min(len(found), len(expected)))
        begin = max(0, place - 2)
        right, wrong = (list(tokens[begin : place + 3]) for tokens in (expected, found))
        details = (f"expected: {right}, from token {begin} on", f"found:    {wrong}")
        what = f"session {name} has another token {place} than without the pipeline"
        raise PartIsWrong(Fault(what, details, LATER, cause=Cause.VALUES_CHANGED))

    # -- a scheduler --------------------------------------------------------------------------------------------------

    def serve(self, script: Script, eos: int | None = None) -> dict[str, InferenceSession]:
        """Let both engines serve the requests of a script; returns those of the right one, by their names.

        eos: the token that ends a text, for the requests that ask for it.
        """
        self.log.device.revive()
        self._mine.eos_token_id = self._right.eos_token_id = eos
        right, mine = Server(self._right), Server(self._mine, self.log)
        script(right)
        right.run()
        before = self.log.number
        try:
            self._of_mine(script, mine)
            self._of_mine(mine.run)
        except NeverEnds:
            what = f"after {MOST_STEPS} steps of the scheduler it still has work: a session waits for its tokens"
            raise PartIsWrong(Fault(what, cause=Cause.STEP_LOST)) from None
        except BlockError as error:
            what = f"when all requests had ended, the pool was damaged: {error}"
            raise PartIsWrong(Fault(what, cause=Cause.BOOKS_WRONG)) from None
        self.steps += self.log.number - before
        for name, session in right.sessions.items():
            self._compare_served(name, mine.sessions.get(name), session)
        return right.sessions

    def _compare_served(self, name: str, mine: InferenceSession | None, right: InferenceSession) -> None:
        found, expected = (mine.token_ids if mine else []), right.token_ids
        if right.finish_reason == "cancelled":  # it may have ended a step earlier
            expected = expected[: max(len(found), len(right.prompt_ids))]
        if found != expected:
            self._differ(name, found, expected)
        if mine is not None and mine.finish_reason != right.finish_reason:
            what = f"session {name} has ended with {mine.finish_reason!r}, not with {right.finish_reason!r}"
            raise PartIsWrong(Fault(what, reason=LATER, cause=Cause.VALUES_CHANGED))

    # -- what a check asks --------------------------------------------------------------------------------------------

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return (Batch.of([t.session for t in batch]),)

    def flights_seen(self) -> FlightsSeen:
        return replace(self.log.seen(), ahead=self._mine.pipeline.steps_ahead)
