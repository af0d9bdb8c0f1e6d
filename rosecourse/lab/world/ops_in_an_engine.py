"""A whole engine with the learner's operations: few steps, since kernels may have to be interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...checks import told
from ...config import EngineConfig, SamplingParams
from ...decode.parts import DecodeParts
from ...engine.engine import InferenceEngine
from ...lessons import BASELINE
from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import Learner
from .ops_guard import in_an_engine
from .tags import letter
from .tiny_gpt2 import attentive_gpt2

NAME = "a whole engine: mixed prompts over several blocks, one that comes later, and a fork"
CONFIG = EngineConfig(block_size=4, max_batch_size=6, max_seq_len=32, prefix_cache=False)
LENGTHS = (5, 1, 8, 3)
LATER, FORKED, STEPS = 2, 4, 7  # the steps before which a request comes, and one is forked; how many there are
UNSEEN = 3  # steps that are made once more
REASON = "a step goes wrong in an engine that is right by itself: is something kept of an earlier step?"


def same_tokens(learner: Learner, parts_with: Callable[[Any], DecodeParts]) -> str:
    """What was compared, in words. Raises `PartIsWrong` with the first token that differs.

    The first steps are made once more by the class itself, without anything of ours around it.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    right = _served(BASELINE, device, STEPS)
    _compare(right, _served(parts_with(in_an_engine(learner)), device, STEPS))
    learner.alive()
    try:
        first = [tokens[: UNSEEN + 1] for tokens in right[: len(LENGTHS)]]
        _compare(first, _served(parts_with(learner.part), device, UNSEEN))
    except Exception as error:
        found = error.fault.what if isinstance(error, PartIsWrong) else f"it raised {told(error)}"
        what = f"the part does otherwise where none of the checker's functions calls it: {found}"
        raise PartIsWrong(Fault(what, reason="a part must not look who calls it", cause=Cause.TAMPERING)) from None
    return f"a whole engine: {sum(map(len, right))} tokens of {len(right)} requests, all those of the baseline"


def _served(parts: DecodeParts, device: str, steps: int) -> list[list[int]]:
    """The completions of all requests, in the order in which they came."""
    engine = InferenceEngine(attentive_gpt2(2, 2, 8, 160, device), CONFIG, parts)
    params = SamplingParams(max_new_tokens=24, stop_on_eos=False)
    sessions = [engine.new_session([7 * n + 3 + m for m in range(many)], params) for n, many in enumerate(LENGTHS)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for step in range(steps):
        if step == LATER and steps == STEPS:
            sessions.append(engine.new_session([61, 5], params))
            engine.take_tokens(sessions[-1:], engine.prefill(sessions[-1:]))
        if step == FORKED:
            sessions.append(engine.fork(sessions[0]))
            sessions[-1].token_ids[-1] = 11
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    return [session.completion_ids for session in sessions]


def _compare(right: list[list[int]], found: list[list[int]]) -> None:
    for n, (theirs, mine) in enumerate(zip(right, found, strict=True)):
        wrong = [at for at, pair in enumerate(zip(theirs, mine, strict=False)) if pair[0] != pair[1]]
        if wrong or len(theirs) != len(mine):
            at = wrong[0] if wrong else min(len(theirs), len(mine))
            details = (f"expected: {theirs}", f"found:    {mine}")
            what = f"request {letter(n)} gets other tokens, from new token {at} on"
            raise PartIsWrong(Fault(what, details, REASON, cause=Cause.VALUES_CHANGED))
