"""A whole engine with the learner's kernels: a few requests, since each step takes the interpreter a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...config import EngineConfig, SamplingParams
from ...decode.parts import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...models.ops import LayerOps
from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import Learner
from .ops_guard import in_an_engine
from .tiny_gpt2 import attentive_gpt2

NAME = "a whole engine: six requests, four at once"
CONFIG = EngineConfig(block_size=4, max_batch_size=4, max_seq_len=32, prefix_cache=False)
LENGTHS = (5, 1, 9, 4, 2, 7)


def same_tokens(learner: Learner, parts_with: Callable[[Any], DecodeParts]) -> str:
    """What was compared, in words. Raises `PartIsWrong` with the first request whose tokens differ."""
    right = _completions(parts_with(LayerOps))
    made = _completions(parts_with(in_an_engine(learner)))
    for n, (ours, theirs) in enumerate(zip(right, made, strict=True)):
        if ours != theirs:
            details = (f"expected: {ours}", f"found:    {theirs}")
            raise PartIsWrong(Fault(f"request {n} gets other tokens", details, cause=Cause.VALUES_CHANGED))
    return f"{NAME}: the tokens are those of the operations of PyTorch"


def _completions(parts: DecodeParts) -> list[list[int]]:
    engine = InferenceEngine(attentive_gpt2(1, 2, 4, CONFIG.max_seq_len), CONFIG, parts)
    scheduler = OnlineScheduler(engine)
    params = SamplingParams(max_new_tokens=6, stop_on_eos=False)
    sessions = [engine.new_session([3 * n + 1] * length, params) for n, length in enumerate(LENGTHS)]
    for session in sessions:
        scheduler.submit(session)
    scheduler.run()
    return [session.completion_ids for session in sessions]
