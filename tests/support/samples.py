"""What the tests of parallel sampling share: requests of several samples, and the same by requests of their own."""

from dataclasses import replace

import pytest
import torch

from rosecourse import (
    BEST,
    LESSONS,
    OfflineScheduler,
    OnlineScheduler,
    SamplingParams,
)
from rosecourse.request.session import samples_of
from tests.support.scheduling import BLOCK, make_engine

RUNGS = pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
KINDS = pytest.mark.parametrize("kind", [OnlineScheduler, OfflineScheduler])
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]
GREEDY = SamplingParams(max_new_tokens=10, stop_on_eos=False)
SAMPLED = replace(GREEDY, temperature=1.0, seed=7)


def alone(model, prompts, params, n, parts=BEST):
    """The same samples by requests of their own, none of which shares a block with another."""
    engine = make_engine(model, parts, prefix_cache=False)
    return [engine.generate(p, replace(params, seed=params.seed + i))[0].token_ids for p in prompts for i in range(n)]


def submit(scheduler, prompts, params, n):
    """Requests of n samples each."""
    sessions = [scheduler.engine.new_session(prompt, params) for prompt in prompts]
    for session in sessions:
        scheduler.submit(session, samples_of(params, n)[1:])
    return sessions


def completions(sessions):
    return [sample.completion_ids for session in sessions for sample in session.samples]


def assert_all_blocks_are_back(engine):
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks


def spoil_prefills(engine, monkeypatch, first_token):
    """Prompts that begin with this token get NaN for logits."""
    real = engine.runner.prefill

    def prefill(sessions):
        rows = [row for row, session in enumerate(sessions) if session.prompt_ids[0] == first_token]
        return real(sessions).index_fill(0, torch.tensor(rows, dtype=torch.int64), torch.nan)

    monkeypatch.setattr(engine.runner, "prefill", prefill)
