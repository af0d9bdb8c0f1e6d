"""The picture of the block lists that a cache keeps of its sessions."""

import pytest
import torch

from rosecourse import BlockError, ConfigError, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.pictures.sheet import SHARED, USED
from rosecourse.pictures.table_lists import table_lists
from tests.support.diagram_reader import grids, start, step, texts

PER_LAYER, ONE_TABLE = lesson("062").before, lesson("062").after


def make(model, parts, num_blocks=12, prefix_cache=False):
    config = EngineConfig(
        block_size=4, max_batch_size=8, num_blocks=num_blocks, max_seq_len=48, prefix_cache=prefix_cache
    )
    return InferenceEngine(model, config, parts)


def lists(picture):
    """{(session, layer): its cells}"""
    found, (names, tables) = {}, (grids(picture)[::2], grids(picture)[1::2])
    for [head], table in zip(names, tables, strict=True):
        for layer, row in enumerate(table):
            found[head[0].text.rpartition(": ")[0], layer] = list(row.values())[1:]
    return found


def drawn(picture):
    """{(session, layer): its numbers}"""
    return {which: [int(cell.text[1:]) for cell in cells] for which, cells in lists(picture).items()}


def marked(picture):
    """The (session, layer, number of the entry) of thick outlines."""
    return {(*which, n) for which, cells in lists(picture).items() for n, cell in enumerate(cells) if cell.marked}


def test_a_cache_of_the_articles_has_a_list_for_each_layer(small_model):
    engine = make(small_model, PER_LAYER)
    a, b = start(engine, 9), start(engine, 3)
    picture = table_lists(engine.kv, {"A": a.table, "B": b.table})
    layers = range(engine.kv.num_layers)
    expected = {("A", n): [0, 1, 2] for n in layers} | {("B", n): [3] for n in layers}
    assert drawn(picture) == expected
    assert {"A: 9 tokens", "B: 3 tokens", "layer 0"} <= set(texts(picture))
    assert f"{2 * len(layers)} lists of 2 sessions, {4 * len(layers)} numbers" in texts(picture)
    assert marked(picture) == set()


def test_a_cache_with_one_table_has_one_list(small_model):
    engine = make(small_model, ONE_TABLE)
    a, b = start(engine, 9), start(engine, 3)
    picture = table_lists(engine.kv, {"A": a.table, "B": b.table})
    assert drawn(picture) == {("A", 0): [0, 1, 2], ("B", 0): [3]}
    assert {"all layers", "2 lists of 2 sessions, 4 numbers"} <= set(texts(picture))
    assert "layer 0" not in texts(picture)


@pytest.mark.parametrize("parts", [PER_LAYER, ONE_TABLE], ids=["per layer", "one table"])
def test_shared_blocks_are_grey(small_model, parts):
    engine = make(small_model, parts)
    a = start(engine, 5)
    alone = table_lists(engine.kv, {"A": a.table})
    fork = engine.fork(a)
    step(engine, a, fork)  # each has a last block of its own now
    picture = table_lists(engine.kv, {"A": a.table, "fork": fork.table})
    assert [cell.fill for cell in lists(picture)["A", 0]] == [SHARED, USED]
    assert "has several owners" in texts(picture)
    assert "has several owners" not in texts(alone)


def test_evicted_blocks_come_back_in_another_order_in_the_other_layers(small_model):
    engine = make(small_model, PER_LAYER, prefix_cache=True)
    for first in (1, 50, 100, 150):  # 4 prompts of 3 blocks fill the pool and stay in the prefix cache
        engine.free(start(engine, 12, first))
    late = start(engine, 9, 200)
    picture = table_lists(engine.kv, {"late": late.table})
    found = drawn(picture)
    expected = {
        ("late", layer, place)
        for (_, layer), blocks in found.items()
        for place, block in enumerate(blocks)
        if block != found["late", 0][place]
    }
    assert marked(picture) == expected != set()
    assert "another index than in layer 0" in texts(picture)


def test_layers_that_disagree_are_told(small_model):
    engine = make(small_model, PER_LAYER)
    session = start(engine, 4)
    new = torch.zeros(engine.kv.k_layers[0].shape[1::2])  # [H, D] of one token
    engine.kv.append_token(0, session.table[0], new, new)
    picture = table_lists(engine.kv, {"A": session.table})
    assert "A: 4 or 5 tokens" in texts(picture)
    assert [len(blocks) for blocks in drawn(picture).values()] == [2] + [1] * (engine.kv.num_layers - 1)
    assert marked(picture) == set()


def test_what_cannot_be_drawn_is_named(small_model):
    engine = make(small_model, ONE_TABLE)
    session = start(engine, 3)
    table = session.table
    engine.free(session)
    with pytest.raises(BlockError, match="holds no blocks"):
        table_lists(engine.kv, {"A": table})
    with pytest.raises(BlockError, match="never computed"):
        table_lists(engine.kv, {"A": engine.new_session([1], SamplingParams(max_new_tokens=1)).table})
    with pytest.raises(ConfigError, match="tables is empty"):
        table_lists(engine.kv, {})
