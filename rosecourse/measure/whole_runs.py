"""The judge of every run: a request that failed is no result, and a run with such a request gives no figure.

Whatever turns requests into a figure asks here first, warm-up runs too, and so does whatever reads a recorded run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ..config import SamplingParams
from ..engine.engine import Generation
from ..errors import RequestFailed
from ..request.session import InferenceSession, SessionTimes, ends_of

ALL = "ask for all of its tokens, with stop_on_eos=False"
TO_THE_END = "let every request run to its end, and measure again"
UNFORKED = "never forked: its request was cancelled before its first token"
NAN = "error: its logits are NaN or infinite"
REMEDIES = {
    "error": "look for NaN in the model's weights, or load it in float32",
    "cancelled": TO_THE_END,
    "stop": ALL,
    UNFORKED: TO_THE_END,
}
REPORT = "the engine or a part of it lost count; measure with the course's parts, and report it if it stays"


class Answer(NamedTuple):
    """What a request was asked for, and what it gave.

    given: its completion tokens; moments: how many of them have a time; last: the last token's id, None if it is not
    known; reason: why it ended, as a session's `finish_reason`, None if it has not ended or that is not known.
    """

    asked: SamplingParams
    given: int
    moments: int
    last: int | None = None
    reason: str | None = None

    @classmethod
    def of(cls, asked: SamplingParams, session: InferenceSession | None) -> Answer:
        """What a session gave; None: it was never made, as the one to fork it from was cancelled."""
        if session is None:
            return cls(asked, 0, 0, reason=UNFORKED)
        ids = session.completion_ids
        return cls(asked, len(ids), len(session.times.tokens), ids[-1] if ids else None, session.finish_reason)

    @classmethod
    def of_generation(cls, asked: SamplingParams, generation: Generation) -> Answer:
        """What came of a prompt, whose tokens have no times of their own."""
        ids = generation.token_ids
        return cls(asked, len(ids), len(ids), ids[-1] if ids else None, generation.finish_reason)

    def is_whole(self, eos_token_id: int | Collection[int] | None) -> bool:
        """Whether each token has a time, and none is missing: all that were asked for, or up to the end of text."""
        stopped = self.asked.stop_on_eos and self.last is not None and self.last in ends_of(eos_token_id)
        most = self.asked.max_new_tokens
        return self.given == self.moments and (self.given == most or (stopped and self.given < most))

    def __str__(self) -> str:
        timed = f", {self.moments} of them with a time" if self.moments != self.given else ""
        why = NAN if self.reason == "error" else self.reason
        return f"gave {self.given} of {self.asked.max_new_tokens} tokens{timed}" + (f" ({why})" if why else "")


def require_whole(answers: Sequence[Answer], eos_token_id: int | Collection[int] | None = None) -> None:
    """Raise `RequestFailed` unless every request gave all that it was asked for.

    A request may end sooner with the end of text where it was to stop there. No workload asks for a cancellation: a
    request that was cancelled has failed. answers: of all requests, in the order of the workload.
    """
    failed = [number for number, answer in enumerate(answers) if not answer.is_whole(eos_token_id)]
    if not failed:
        return
    answer = answers[failed[0]]
    others = f", and {len(failed) - 1} more of {len(answers)} failed" if len(failed) > 1 else ""
    remedy = REMEDIES.get(answer.reason or "", REPORT)
    raise RequestFailed(f"request {failed[0]} {answer}{others}: such a run gives no figure; {remedy}")


def require_read(times: Sequence[SessionTimes]) -> None:
    """Raise `RequestFailed` unless the reader of every request had each of its tokens once."""
    for number, one in enumerate(times):
        if len(one.read) != len(one.tokens):
            told = f"the reader of request {number} had {len(one.read)} tokens of {len(one.tokens)}"
            raise RequestFailed(f"{told}: such a run gives no figure; {REPORT}")


def running_steps(sessions: Sequence[InferenceSession], steps: int) -> Iterator[int]:
    """The numbers of so many steps; before each, `require_running`."""
    for number in range(steps):
        require_running(sessions)
        yield number


def require_running(sessions: Sequence[InferenceSession]) -> None:
    """Raise `RequestFailed` for a session that has ended: a step over it is no step of a request."""
    for number, session in enumerate(sessions):
        if session.finished:
            answer = Answer.of(session.params, session)._replace(moments=len(session.completion_ids))
            raise RequestFailed(
                f"session {number} {answer} and has ended: a step over it gives no figure; ask for more tokens, with "
                "stop_on_eos=False"
            )
