"""InferenceEngine: forks, audits, prompts of every kind, streams, and what a prefill sends to the device."""

import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch

from rosecourse import BlockError, InferenceEngine, RequestError, SamplingParams
from rosecourse.decode import prefill
from rosecourse.engine import engine as engine_module
from rosecourse.kv import blocks as one_table
from tests.support.hazards import Driver
from tests.support.oracles import prompts_of
from tests.support.scheduling import make_engine


def test_fork_has_limits_of_its_own_and_the_draws_of_its_seed(small_model):
    engine = make_engine(small_model)

    def asked(new, seed):
        return SamplingParams(max_new_tokens=new, temperature=1.0, seed=seed, stop_on_eos=False)

    session = engine.new_session([1, 2, 3], asked(20, 5))
    engine.take_tokens([session], engine.prefill([session]))
    live = [session, engine.fork(session), engine.fork(session, asked(20, 6)), engine.fork(session, asked(2, 5))]
    while any(not each.finished for each in live):
        batch = [each for each in live if not each.finished]
        engine.take_tokens(batch, engine.decode_step_sessions(batch))
    first, twin, other, short = (each.completion_ids for each in live)
    assert first == twin != other
    assert short == first[:2]
    assert {each.finish_reason for each in live} == {"length"}
    with pytest.raises(RequestError, match="`fork` takes no session that has finished"):
        engine.fork(session)
    for each in live:
        engine.free(each)
    engine.audit([])


def test_fork_past_its_own_limit_has_a_block_for_its_next_token(small_model):
    driver = Driver(small_model, "071")
    (session,) = driver.start([1, 2, 3], new=20)
    for _ in range(4):
        driver.step()
    fork = driver.engine.fork(session, SamplingParams(max_new_tokens=1))
    assert fork.most_tokens == len(session.token_ids) + 1


def test_a_text_that_cannot_fit_is_not_tokenized(model, monkeypatch):
    engine = make_engine(model, max_seq_len=64)
    monkeypatch.setattr(engine_module, "encode", None)
    with pytest.raises(RequestError, match="the prompt has 200000 characters"):
        engine.tokenize("ab" * 100_000)


def test_nobody_holds_a_session_that_was_freed_before_its_token(small_model):
    engine = make_engine(small_model)
    session = engine.new_session([1, 2, 3])
    held = sys.getrefcount(session)
    engine.prefill([session])
    engine.free(session)
    assert sys.getrefcount(session) == held


@pytest.mark.parametrize("rung", ["061", "065"])
def test_engine_checks_its_books_when_asked(small_model, rung):
    driver = Driver(small_model, rung, prefix_cache=True)
    engine, (first, second, third) = driver.engine, driver.start_lengths(4, 9, 6)
    driver.fork(third)
    driver.free(first)  # its block stays in the prefix cache
    engine.audit(sessions := [*driver.live, driver.session([1, 2])])
    with pytest.raises(BlockError, match="owners"):
        engine.audit(sessions[1:])
    second.num_cached_tokens += 1
    with pytest.raises(BlockError, match="of 10 tokens has blocks for 9, and 10 are computed"):
        engine.audit(sessions)
    second.num_cached_tokens -= 1
    if rung == "061":
        engine.kv.append_token(1, third.table[1], *torch.zeros(2, 2, 8))  # as if a step had been interrupted
        says = "do not hold the same number of tokens"
    else:
        third.table.num_tokens += engine.kv.block_size
        says = "10 tokens do not fill the 2 blocks of their table"
    with pytest.raises(BlockError, match=says):
        engine.audit(sessions)


def test_prompts_of_every_kind_are_one_prompt_or_several(small_model):
    engine = make_engine(small_model)
    params = SamplingParams(max_new_tokens=np.int64(3))
    ids = [3, 1, 2]
    kinds = [ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]]
    expected = engine.generate([ids], params)[0].token_ids
    assert [r.token_ids for r in engine.generate((k for k in kinds), params)] == [expected] * len(kinds)
    for make in (list, torch.tensor, np.array):
        (one,) = engine.generate(make(ids), params)
        first, second = engine.generate(make([ids, [2, 3, 4]]), params)
        assert one.prompt == ids
        assert one.token_ids == first.token_ids == expected != second.token_ids


def test_stream_gives_the_same_tokens_and_text_as_generate(model):
    engine = InferenceEngine(model)
    params = SamplingParams(max_new_tokens=50, temperature=0.9, seed=4)
    whole = engine.generate("Emma was", params)[0]
    pieces = list(engine.stream("Emma was", params))
    assert [p.token_id for p in pieces] == whole.token_ids
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]


@pytest.mark.parametrize("lengths", [[], [3], [3, 3, 8, 1]])
def test_three_index_tensors_go_to_the_device_for_any_batch(small_model, lengths):
    """By `index_tensor`, which does not wait; numbers of tokens, rows of logits, and the cache's block tables."""
    engine = make_engine(small_model, max_batch_size=8)
    (stem,) = prompts_of([16], 200)
    engine.generate(stem, SamplingParams(max_new_tokens=2))
    prompts = [[*stem, 5, 6], [*stem[:8], 7], *prompts_of(lengths, 200, seed=1)]  # all of it is hit, and half
    sessions = [engine.new_session(prompt) for prompt in prompts]
    with (
        patch.object(prefill, "index_tensor", wraps=prefill.index_tensor) as index_tensor,
        patch.object(one_table, "index_tensor", index_tensor),
        patch.object(torch, "tensor", wraps=torch.tensor) as tensor,
    ):
        engine.prefill(sessions)
    assert index_tensor.call_count == tensor.call_count == 3
    assert [session.num_cached_tokens for session in sessions] == [18, 9, *lengths]
    (rows,) = [call.args[0] for call in index_tensor.call_args_list if isinstance(call.args[0][0], int)]
    computed = [2, 1, *lengths]
    assert rows == [sum(computed[: n + 1]) - 1 for n in range(len(computed))]
