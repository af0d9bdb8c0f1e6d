"""A whole engine with the learner's part: the same greedy tokens as the baseline, in hard traffic."""

from __future__ import annotations

from functools import lru_cache

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...kv.blocks import KVBlockManager
from ...lessons import BASELINE
from ...models.shape import Model
from ..world.causes import Cause
from ..world.engine_parts import per_layer_cache
from ..world.fault import Fault, PartIsWrong
from ..world.learner import Learner
from ..world.tiny_gpt2 import random_gpt2
from .trial import Trial

NAME = "a whole engine: mixed prompts, shared prefixes, forks, and too few blocks for all of them"
STEM = [7, 7, 7, 7, 8, 8, 8, 8]  # two full blocks, which the prefix cache shares
PROMPTS = [[*STEM, 3], [5], [9] * 11, [*STEM, 4, 4], [2] * 4, [6, 1, 6]]
FORKS = {3: 0, 5: 2, 6: 1}  # at a step: which of the running sessions is forked


def same_tokens(trial: Trial) -> str:
    """What was compared, in words. Raises `PartIsWrong` with the first token that differs."""
    tokens = 0
    for num_blocks, gate in ((60, 128), (12, 2)):
        config = EngineConfig(
            block_size=4, max_batch_size=8, num_blocks=num_blocks, max_seq_len=40, triton_kv_append_min_batch=gate
        )
        model = random_gpt2(2, 2, 4, 40, trial.device)
        right = _baseline(model, config)
        _compare(right, _play(model, config, trial.parts_with(_guarded(trial.learner))))
        tokens += sum(map(len, right))
    return f"a whole engine, twice: {tokens} tokens of {2 * len(right)} sessions, all those of the baseline"


@lru_cache
def _baseline(model: Model, config: EngineConfig) -> list[list[int]]:
    """The completions of the baseline; once is enough."""
    return _play(model, config, BASELINE)


def _guarded(learner: Learner) -> type:
    """The learner's class as a part whose exceptions are told as in the other scenarios."""

    class Guarded:
        def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
            self.made = learner.build(model, kv, config)

        def __call__(self, *arguments: object) -> object:
            return learner.call(self.made, *arguments)

    return Guarded


def _play(model: Model, config: EngineConfig, parts: DecodeParts) -> list[list[int]]:
    """The completions of all sessions; the cache is checked at the end."""
    engine = InferenceEngine(model, config, parts)
    scheduler = OnlineScheduler(engine)
    params = SamplingParams(max_new_tokens=14, stop_on_eos=False)
    sessions = []
    for number in range(200):
        if number < len(PROMPTS):
            sessions.append(engine.new_session(PROMPTS[number], params))
            scheduler.submit(sessions[-1])
        running = scheduler.running
        if number in FORKS and FORKS[number] < len(running) and not running[FORKS[number]].finished:
            sessions.append(engine.fork(running[FORKS[number]]))
            sessions[-1].token_ids[-1] = 11 + number  # it goes on with another word
            scheduler.submit(sessions[-1])
        if number >= len(PROMPTS) and not scheduler.has_work:
            break
        scheduler.step()
    cached = engine.prefix_cache.entries() if engine.prefix_cache else []
    KVBlockManager.audit(per_layer_cache(engine.kv), [], cached)
    return [session.completion_ids for session in sessions]


def _compare(right: list[list[int]], given: list[list[int]]) -> None:
    for number, (tokens, theirs) in enumerate(zip(right, given, strict=True)):
        for position, (token, other) in enumerate(zip(tokens, theirs, strict=True)):
            if token != other:
                what = f"request {number}: new token {position} is {other}; the baseline's is {token}"
                reason = "what the next step read is not what was appended"
                raise PartIsWrong(Fault(what, reason=reason, cause=Cause.VALUES_CHANGED))
