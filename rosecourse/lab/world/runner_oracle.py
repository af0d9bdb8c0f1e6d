"""The oracle for runners: an engine with the learner's, beside a twin that launches the same work eagerly.

Both live through the same sessions, so that all they hold is the same as long as the part is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...decode.inputs import DecodeInputs
from ...decode.parts import DecodeParts
from ...decode.runner import DeviceStep, Outcome
from ...engine.engine import InferenceEngine
from ...errors import RosecourseError
from ...lessons import lesson
from ...models.shape import Model
from ...request.session import InferenceSession
from .books import ONE_TABLE_BOOKS
from .causes import Cause
from .cpu_runners import FixedWidthForward, PaddedRunner
from .fault import Fault, PartIsWrong
from .layout import ONE_TABLE
from .learner import Learner
from .oracle import Around, Oracle
from .pool import Sizes, Tracked
from .runner_guard import GuardedRunner
from .runner_judges import State, look_at_step
from .runner_log import GraphsSeen, RunLog, WatchedWork
from .telling import fail
from .tiny_gpt2 import attentive_gpt2

GREEDY = SamplingParams(stop_on_eos=False)


def recordable(parts: DecodeParts, device: torch.device) -> DecodeParts:
    """The parts, with a forward that a graph can hold on this device too."""
    return parts.with_(forward=FixedWidthForward) if device.type == "cpu" else parts


def params_of(number: int) -> SamplingParams:
    """Of a session that samples; each has others."""
    return SamplingParams(
        temperature=(0.9, 1.5, 0.6)[number % 3],
        top_k=(0, 9, 0, 40)[number % 4],
        top_p=(1.0, 0.9)[number % 2],
        seed=31 + number,
        stop_on_eos=False,
    )


class RunnerOracle(Oracle):
    """For a part `runner`. Sessions are greedy, or sample as `params_of` their numbers says."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        self.learner, self.sizes, self.steps = learner, sizes, 0
        self.sessions: list[Tracked] = []
        self.started = 0
        self._around: Around = nullcontext
        self._log = RunLog()
        self._twins: dict[int, InferenceSession] = {}  # number -> the twin's session
        oracle, device = self, torch.device(sizes.device)

        class Watched(GuardedRunner):
            def __init__(self, model: Model, kv: Any, config: EngineConfig) -> None:
                super().__init__(learner, model, kv, config)

            def start(self, work: DeviceStep) -> None:
                super().start(WatchedWork(work, oracle._log))
                oracle._look_at_graphs()

            def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
                oracle._log.sampled = sampled
                with oracle._log.watching(), oracle._around():
                    returned = learner.call(self.made, inputs, sampled)
                oracle._look_at_graphs()
                outcome = self.outcome_of(returned, len(inputs.token_ids), oracle._log.seen().rows)
                oracle._log.returned(outcome)
                return outcome

        parts = recordable(lesson("066").after, device)
        model = attentive_gpt2(sizes.layers, sizes.heads, sizes.head_dim, sizes.max_seq_len, sizes.device)
        with self._log.watching():
            self._mine = InferenceEngine(model, sizes.config(), parts.with_(runner=Watched))
        self._right = InferenceEngine(model, sizes.config(), parts.with_(runner=PaddedRunner))
        self.part = self._mine.decode_step.runner.made
        self.kv = self._mine.kv
        for kv in (self._mine.kv, self._right.kv):
            for cache in (*kv.k_layers, *kv.v_layers):
                cache.fill_(float("nan"))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int, sampled: bool = False) -> Tracked:
        """A new session of `length` tokens, one at least, and the token that comes after them."""
        params = params_of(self.started) if sampled else GREEDY
        prompt = [(7 * self.started + 3 * n) % 90 for n in range(max(1, length))]
        params = replace(params, max_new_tokens=self.sizes.max_seq_len - len(prompt))
        mine, right = (engine.new_session(prompt, params) for engine in (self._mine, self._right))
        for engine, session in ((self._mine, mine), (self._right, right)):
            engine.take_tokens([session], engine.prefill([session]))
        self._twins[self.started] = right
        tracked = self._track(mine, torch.empty(2, 0, length, 0, 0))
        if mine.token_ids != right.token_ids:
            what = f"the first token of session {tracked.name} is {mine.token_ids[-1]}, not {right.token_ids[-1]}"
            fail(self, Cause.VALUES_CHANGED, what, reason="`best` finds another token than the most probable one")
        return tracked

    def fork(self, parent: Tracked) -> Tracked:
        """A sibling that shares all blocks, and goes on with another word."""
        word = 90 - self.started % 7
        twin = self._twins[parent.number]
        mine, right = self._mine.fork(parent.session), self._right.fork(twin)
        mine.token_ids[-1] = right.token_ids[-1] = word
        self._twins[self.started] = right
        return self._track(mine, parent.dense)

    def free(self, tracked: Tracked) -> None:
        self.sessions.remove(tracked)
        self._mine.free(tracked.session)
        self._right.free(self._twins[tracked.number])

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, *batch: Tracked, around: Around = nullcontext) -> None:
        """One more token for each session of the batch, in both engines; then everything is compared."""
        self.steps += 1
        self._around = around
        try:
            self.work(batch)
        finally:
            self._around = nullcontext

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        sessions, twins = [t.session for t in batch], [self._twins[t.number] for t in batch]
        self._log.begin()
        logits = self._mine.decode_step_sessions(sessions)
        theirs = self._right.decode_step_sessions(twins)
        mine, right = _state(self._mine), _state(self._right)
        look_at_step(self, self._log, batch, mine, right)
        self._take(sessions, logits)
        self._right.take_tokens(twins, theirs)
        for t in batch:
            t.dense = torch.empty(2, 0, t.length + 1, 0, 0)
        return right.keys_values

    def _take(self, sessions: list[InferenceSession], logits: torch.Tensor) -> None:
        try:
            self._mine.take_tokens(sessions, logits)
        except RosecourseError as error:
            fail(self, Cause.VALUES_CHANGED, f"no tokens can be read after the step: {error}")

    def _look_at_graphs(self) -> None:
        if self._log.unwatched:
            what = f"{self.learner.part.__name__} makes graphs of a CPU by itself: on a GPU these are of no use"
            reason = "`graphs_for(kv.device)` returns what makes a graph, on whatever device"
            raise PartIsWrong(Fault(what, reason=reason, cause=Cause.INTERFACE))

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        rows = self._mine.decode_step.rows
        return rows.view(len(batch)).inputs, rows.sampling

    def graphs_seen(self) -> GraphsSeen:
        return self._log.seen()


def _state(engine: InferenceEngine) -> State:
    """An engine as a step has left it."""
    step: Any = engine.decode_step
    caches = [torch.stack(list(layers)) for layers in (engine.kv.k_layers, engine.kv.v_layers)]
    return State(step.outcome, step.rows, torch.stack(caches))
