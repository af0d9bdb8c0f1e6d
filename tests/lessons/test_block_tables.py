"""The block tables of lessons 035 to 063, a part of which builds them for each step."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from tests.support.layouts import layout_of

# Those with a part that makes block tables, each for the first time or with another cache.
BUILDERS = ["035", "036", "062", "063"]
PARAMS = SamplingParams(max_new_tokens=60, stop_on_eos=False)


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
