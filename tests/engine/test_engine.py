"""InferenceEngine: sessions, forks, exhaustion, and reading nothing that was not written."""

import numpy as np
import pytest
import torch

from rosecourse import (
    BEST,
    LESSONS,
    BlockError,
    EngineConfig,
    InferenceEngine,
    RequestError,
    SamplingParams,
    lesson,
)
from rosecourse.lessons.dense import DecodeForward as DenseForward
from tests.support.oracles import prompts_of

PARTS = {rung.number: rung.after for rung in LESSONS} | {"dense": lesson("061").after.with_(forward=DenseForward)}
FREE_RUN = SamplingParams(max_new_tokens=40, stop_on_eos=False)


def make_engine(model, parts=BEST, **config):
    return InferenceEngine(
        model, EngineConfig(**{"block_size": 4, "max_batch_size": 8, "prefix_cache": False} | config), parts
    )


def start(engine, prompts):
    """Prefilled sessions with their first token."""
    sessions = [engine.new_session(p, FREE_RUN) for p in prompts]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def step(engine, sessions):
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


def check(engine, sessions):
    engine.kv.audit([s.block_ids_per_layer for s in sessions])


def test_a_fork_has_limits_of_its_own_and_the_draws_of_its_seed(small_model):
    engine = make_engine(small_model)
    sampled = SamplingParams(max_new_tokens=20, temperature=1.0, seed=5, stop_on_eos=False)
    session = engine.new_session([1, 2, 3], sampled)
    engine.take_tokens([session], engine.prefill([session]))
    for _ in range(5):
        step(engine, [session])
    twin = engine.fork(session)
    other = engine.fork(session, SamplingParams(max_new_tokens=20, temperature=1.0, seed=6, stop_on_eos=False))
    short = engine.fork(session, SamplingParams(max_new_tokens=3))
    with pytest.raises(RequestError, match="max_new_tokens is 500"):
        engine.fork(session, SamplingParams(max_new_tokens=500))
    step(engine, [session, twin, other, short])
    assert short.finished
    for _ in range(13):
        step(engine, [session, twin, other])
    assert session.completion_ids == twin.completion_ids != other.completion_ids
    assert session.finish_reason == twin.finish_reason == other.finish_reason == "length"
    with pytest.raises(RequestError, match="only a running session can be forked"):
        engine.fork(session)
    for s in (session, twin, other, short):
        engine.free(s)
    check(engine, [])
    with pytest.raises(BlockError, match="holds no blocks"):
        engine.free(session)


@pytest.mark.parametrize("number", ["061", "065"])
def test_an_engine_checks_its_books_when_asked(small_model, number):
    engine = make_engine(small_model, lesson(number).after, prefix_cache=True)
    sessions = [*start(engine, prompts_of([4, 9, 6], 211)), engine.new_session([1, 2], FREE_RUN)]
    sessions.append(engine.fork(sessions[2]))
    engine.free(sessions[0])  # its block stays in the prefix cache
    engine.audit(sessions)
    with pytest.raises(BlockError, match="counts 1 owners, its holders are others"):
        engine.audit(sessions[2:])
    sessions[1].num_cached_tokens += 1
    with pytest.raises(BlockError, match="has 10 tokens and blocks for 9, and 10 tokens are computed"):
        engine.audit(sessions)
    sessions[1].num_cached_tokens -= 1
    if number == "061":
        layer = sessions[2].block_ids_per_layer[1]
        engine.kv.append_token(1, layer, *torch.zeros(2, 2, 8))  # as if a step had been interrupted
        with pytest.raises(BlockError, match="do not hold the same number of tokens"):
            engine.audit(sessions)
    else:
        sessions[2].table.num_tokens += engine.kv.block_size
        with pytest.raises(BlockError, match="10 tokens do not fill the 2 blocks of their table"):
            engine.audit(sessions)


def test_prompts_of_every_kind(small_model):
    engine = make_engine(small_model)
    params = SamplingParams(max_new_tokens=np.int64(3))
    ids = [3, 1, 2]
    kinds = [ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]]
    expected = engine.generate([ids], params)[0].token_ids
    assert [r.token_ids for r in engine.generate((k for k in kinds), params)] == [expected] * len(kinds)
    assert engine.generate(np.array(ids).tolist(), params)[0].token_ids == expected
    for bad in (b"hi", [1.5], [["x"]], 5, None, "\ud800"):
        with pytest.raises(RequestError, match="give a text, or a list of token ids"):
            engine.new_session(bad)


def test_a_row_of_numbers_is_one_prompt_and_a_table_several(small_model):
    engine, params = InferenceEngine(small_model), SamplingParams(max_new_tokens=3)
    for make in (list, torch.tensor, np.array):
        (one,) = engine.generate(make([1, 6, 7]), params)
        first, second = engine.generate(make([[1, 6, 7], [2, 3, 4]]), params)
        assert one.prompt == [1, 6, 7]
        assert one.token_ids == first.token_ids != second.token_ids


def test_stream_gives_the_same_tokens_and_text_as_generate(model):
    engine = InferenceEngine(model)
    params = SamplingParams(max_new_tokens=50, temperature=0.9, seed=4)
    whole = engine.generate("Emma was", params)[0]
    pieces = list(engine.stream("Emma was", params))
    assert [p.token_id for p in pieces] == whole.token_ids
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]


@pytest.mark.parametrize("parts", [rung.after for rung in LESSONS], ids=[rung.number for rung in LESSONS])
def test_each_part_is_built_once_from_the_model_the_cache_and_what_was_settled(small_model, parts):
    built = []

    def watched(part):
        def build(*given):
            built.append(given)
            return part(*given)

        return build

    names = [name for name in ("block_tables", "forward", "kv_append", "copy_blocks", "rows") if getattr(parts, name)]
    watched_parts = parts.with_(**{name: watched(getattr(parts, name)) for name in names})
    engine = InferenceEngine(small_model, parts=watched_parts)
    assert [given[1:] for given in built] == [(engine.kv, engine.config)] * len(names)
    for model, *_ in built:  # the same, computed with the part `ops`
        assert model.weights is small_model.weights
        assert isinstance(model.ops, parts.ops)
