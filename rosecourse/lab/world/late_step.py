"""The decode step of an engine whose device is late: it runs, and shows nothing before somebody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ...decode.inputs import Batch
from ...decode.runner import Outcome
from ...request.session import InferenceSession
from .flight_log import FlightLog, Launched
from .late_tensors import fill_with_poison


class LateRows:
    """What a pipeline may ask of the rows."""

    def __init__(self, rows: Any, log: FlightLog, tokens: torch.Tensor) -> None:
        """tokens: what the last step has made, in the memory of the device."""
        self._rows, self._log, self._tokens = rows, log, tokens

    def forget(self) -> None:
        """Nobody knows what is on the device."""
        self._log.forgotten = True
        self._rows.forget()

    def view(self, size: int) -> Any:
        """The first rows, whose last tokens are on the device alone."""
        view = self._rows.view(size)
        return view._replace(inputs=replace(view.inputs, token_ids=self._log.device.holds(self._tokens[:size])))

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the rows, in their order."""
        return self._rows.holds(sessions)

    def read(self, batch: Batch, token_ids: list[int]) -> None:
        """The host has read the tokens of a batch."""
        self._rows.read(batch, token_ids)


class LateStep:
    """A decode step as a pipeline gets it.

    The step itself has run when `run` returns, so that the next one finds all that it needs. What `run` returns lies in
    two buffers of the late device, as a graph's outcome does: poison until the device comes to it, and overwritten
    by the next step.
    """

    def __init__(self, step: Any, log: FlightLog, max_rows: int, vocab_size: int) -> None:
        self._step, self._log = step, log
        self._tokens = torch.empty(max_rows, dtype=torch.int64)
        self.rows = LateRows(step.rows, log, self._tokens)
        self._logits = torch.empty(max_rows, vocab_size)
        for buffer in (self._tokens, self._logits):
            fill_with_poison(buffer)
        self._returned: tuple[Any, torch.Tensor] | None = None  # logits that a call has returned, and the true ones

    def run(self, batch: Batch) -> Outcome:
        """Tell the device to make one more token for each session."""
        return self._shown(self._step.run, batch)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: its logits. For pipelines as they were up to lesson 066."""
        true: list[torch.Tensor] = []

        def call(batch: Batch) -> Outcome:
            true.append(self._step(batch.sessions))
            return self._step.outcome

        logits = self._shown(call, Batch.of(sessions)).logits
        self._returned = logits, true[0]
        return logits

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session; waits for the device."""
        self._log.device.wait()
        if self._returned is not None and logits is self._returned[0]:
            logits = self._returned[1]
        return self._step.choose(sessions, logits.as_subclass(torch.Tensor))

    def has_read(self, batch: Batch, token_ids: list[int]) -> None:
        """The host has read the tokens of a batch."""
        self._step.has_read(batch, token_ids)

    def _shown(self, run: Any, batch: Batch) -> Outcome:
        log = self._log
        if log.failure is not None:
            failure, log.failure = log.failure, None
            raise failure
        true = Outcome(*(made.clone() for made in run(batch)))
        step = log.ran(batch.sessions, true.tokens.tolist())
        shown = Outcome(self._logits[: len(batch)], self._tokens[: len(batch)])
        self._tell(step, true, shown)
        return Outcome(*map(log.device.holds, shown))

    def _tell(self, step: Launched, true: Outcome, shown: Outcome) -> None:
        def work() -> None:
            for buffer, made in zip(shown, true, strict=True):
                buffer.copy_(made)

        self._log.device.tell_step(step.number, work, *shown)
