"""The block tables of lessons 035 to 063, a part of which builds them for each step."""

from unittest.mock import patch

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from tests.support.layouts import layout_of
from tests.support.oracles import prompts_of

# Those with a part that makes block tables, each for the first time or with another cache.
BUILDERS = ["035", "036", "062", "063"]
PARAMS = SamplingParams(max_new_tokens=60, stop_on_eos=False)
each_builder = pytest.mark.parametrize("number", BUILDERS)


def tables_of(number, model):
    """An engine of a lesson, and a way to look at the tables that its next step would use."""
    config = EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False)
    engine = InferenceEngine(model, config, lesson(number).after)

    @torch.inference_mode()
    def tables(sessions):
        return engine.decode_step.block_tables(sessions).clone()

    return engine, tables


def expected_tables(engine, sessions):
    """Straight from the lists."""
    width = engine.config.blocks_for(engine.config.max_seq_len)
    lists = [layout_of(engine.kv).lists(session.table) for session in sessions]
    rows = [[ids[layer] + [0] * (width - len(ids[layer])) for ids in lists] for layer in range(engine.kv.num_layers)]
    return torch.tensor(rows, dtype=torch.int32)


@each_builder
def test_tables_show_the_lists_through_forks_and_preemption(small_model, number):
    engine, tables = tables_of(number, small_model)
    sessions = [engine.new_session(p, PARAMS) for p in prompts_of([3, 6, 9], 211)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    sessions.append(engine.fork(sessions[1]))
    for step in range(20):
        assert torch.equal(tables(sessions), expected_tables(engine, sessions))
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
        if step in (4, 11):  # preempted and computed again, on other blocks
            engine.free(sessions[0])
            engine.kv.allocate(4)
            engine.take_tokens(sessions[:1], engine.prefill(sessions[:1]))
        if step == 7:
            sessions.reverse()


@each_builder
def test_a_row_is_known_by_its_table_and_not_by_its_look(small_model, number):
    """[5, 7] and then [6, 7]: the signature (2, 7) is the same, the session's table is another."""
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1] * 6, PARAMS)
    for row in ([], [5], [5, 7], [6, 7], [6]):
        session.table = layout_of(engine.kv).table(row)
        assert tables([session])[:, 0, :3].tolist() == [row + [0] * (3 - len(row))] * 3


@pytest.mark.parametrize("number", ["035", "036"])
def test_each_layer_shows_its_own_list(small_model, number):
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1] * 6, PARAMS)
    session.table = layout_of(engine.kv).table([])
    session.block_ids_per_layer[1].append(engine.kv.num_blocks + 5)
    assert tables([session])[:, 0, :2].tolist() == [[0, 0], [5, 0], [0, 0]]


def cached_rows(table):
    """The rows that a part keeps of a table, of each layer or of all."""
    cache = table.row_cache or []
    return [row for row, _ in (cache if isinstance(cache, list) else [cache])]


@pytest.mark.parametrize("number", ["036", "062"])
@torch.inference_mode()
def test_no_row_is_built_that_has_not_changed(small_model, number):
    """What the cached rows hold is falsified between the steps: only what is built anew is right again."""
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1, 2, 3], PARAMS)
    engine.take_tokens([session], engine.prefill([session]))
    written = []
    for _ in range(7):
        right = expected_tables(engine, [session])[:, 0]
        for row in cached_rows(session.table):
            row.fill_(-1)
        found = tables([session])[:, 0]
        assert torch.all((found == right) | (found == -1))
        written.append([i for i in range(3) if torch.equal(found[:, i], right[:, i])])
        for layer, row in enumerate(cached_rows(session.table)):
            row.copy_(right[layer])  # the step itself needs them
        engine.take_tokens([session], engine.decode_step_sessions([session]))
    # 3 tokens in the first step; the second block begins with the fifth token, the third with the ninth.
    assert written == [[0, 1, 2], [], [0, 1], [], [], [], [1, 2]]


def test_lessons_from_036_on_build_no_tensors(small_model):
    counts = {}
    for number in BUILDERS:
        engine, tables = tables_of(number, small_model)
        sessions = [engine.new_session([n, 1], PARAMS) for n in range(4)]
        engine.prefill(sessions)
        with patch.object(torch, "tensor", wraps=torch.tensor) as tensor:
            for _ in range(5):
                tables(sessions)
        counts[number] = tensor.call_count
    assert counts == {"035": 5 * 3, "036": 0, "062": 0, "063": 0}
