"""Hazards of values and rows: what a step reads and writes in the pool, and where."""

import dataclasses

import pytest
import torch
import triton.runtime.interpreter as triton_interpreter

from rosecourse import EngineConfig, LogitsError, random_model
from rosecourse.decode import Batch, DecodeStep
from rosecourse.kernels import triton_runs_on
from rosecourse.kernels.reference import context_rows
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from tests.support.hazards import BS, RUNGS, Driver, check, pool
from tests.support.layouts import OneTable, layout_of
from tests.support.oracles import prompts_of

NAN = float("nan")
PADDED = ("066-padded", "066-graphs")  # they run over pads too
EACH = pytest.mark.parametrize("rung", RUNGS)
BOTH = pytest.mark.parametrize("rung", ["061", "071"])  # a list of blocks for each layer, and one for all


def a_mixed_batch(driver):
    """Lengths around block boundaries, a fork from a partial block and one from a boundary; the live sessions."""
    sessions = driver.start_lengths(1, 3, 4, 5, 11)
    driver.fork(sessions[3], token_id=7)
    driver.fork(sessions[2], token_id=9)
    return driver.live


def positions_held(kv, sessions):
    """[num_blocks and spare ones, block_size] for each layer: whether a session holds a token there."""
    places = torch.zeros(kv.num_layers, len(kv.k_layers[0]), kv.block_size, dtype=torch.bool)
    for session in sessions:
        for layer, ids in enumerate(layout_of(kv).lists(session.table)):
            for position in range(session.num_cached_tokens):
                places[layer, ids[position // BS], position % BS] = True
    return places


@EACH
def test_nothing_is_read_that_no_session_holds(small_model, rung):
    """Hazard 16: before each step NaN in every free block and unused slot, and tables padded with a block of NaN."""
    clean = Driver(small_model, rung)
    a_mixed_batch(clean)
    expected = [clean.step() for _ in range(5)]
    driver = Driver(small_model, rung)
    decode_step = driver.engine.decode_step
    forward = getattr(decode_step, "forward", None)

    def pad(tables, sessions):  # [..., B, max_blocks]
        for b, session in enumerate(sessions):
            tables[..., b, len(driver.layout.lists(session.table)[0]) :] = driver.kv.num_blocks - 1
        return tables

    def padded(inputs, *append):
        found = pad(inputs.block_tables.clone(), inputs.sessions)
        return forward(dataclasses.replace(inputs, block_tables=found), *append)

    a_mixed_batch(driver)
    for number in range(5):
        for layer, places in enumerate(positions_held(driver.kv, driver.live)):
            for cache in (driver.kv.k_layers[layer], driver.kv.v_layers[layer]):
                cache.transpose(1, 2)[~places] = NAN
        assert driver.kv.k_layers[0][driver.kv.num_blocks - 1].isnan().all()  # the last block is nobody's
        if forward is not None:
            decode_step.forward = padded
        else:  # a graph reads the tables where they lie
            pad(decode_step.rows.block_tables, driver.live)
        logits = driver.engine.decode_step_sessions(driver.live)
        assert torch.equal(logits, expected[number])
        driver.engine.take_tokens(driver.live, logits)
        driver.check()


@EACH
@torch.inference_mode()
def test_a_table_shows_the_blocks_of_now(small_model, rung):
    """Hazard 17: a middle block replaced, with the same length and last block; a row that shrinks and grows again."""
    driver = Driver(small_model, rung)
    session, step = driver.session([1] * 6), driver.engine.decode_step
    for row in ([5, 7], [6, 7], [6, 3, 7], [6, 4, 7], [6], [6, 2], [9, 8, 7, 6], [9], [9, 1, 1]):
        session.table = driver.layout.table(row)
        for _ in range(2):
            if "block_tables" in step.stages:
                shown = step.block_tables([session])
            else:
                shown = step.plan(Batch.of([session]) if isinstance(step, DecodeStep) else [session]).block_tables
            assert shown[:, 0, : len(row)].tolist() == [row] * 3
            if "block_tables" in step.stages:
                assert not shown[:, 0, len(row) :].any()


def test_rows_of_a_layer_are_counted_in_64_bits():
    """Hazard 19: block ids come as int32, and their rows are past what int32 can say."""
    H, block_size, last = 12, 64, 2**31 - 1
    tables = torch.tensor([[[3, last]], [[last, 0]]], dtype=torch.int32)  # two layers, one session
    rows = context_rows(tables, torch.tensor([[0, 63, 64, 127]]), H, block_size)
    expected = [
        [[(blocks[p // 64] * H + h) * 64 + p % 64 for p in (0, 63, 64, 127)] for h in range(H)]
        for blocks in ([3, last], [last, 0])
    ]
    assert rows[:, 0].tolist() == expected


@pytest.mark.parametrize("rung", ["059", "061-triton"])
def test_the_append_reaches_blocks_past_2_to_the_31_elements(rung, monkeypatch):
    """Hazard 19: every rung's append, to the last blocks of a larger pool; memory not used is not touched."""
    if triton_runs_on(torch.device("cpu")):  # integers that wrap would write outside of the pool: they shall raise
        strict = dataclasses.replace(triton_interpreter.interpreter_builder.options, debug=True)
        monkeypatch.setattr(triton_interpreter.interpreter_builder, "options", strict)
    parts, min_batch = RUNGS[rung]
    H, D, block_size = 2, 32, 64
    num_blocks = 2**31 // (H * D * block_size) + 3
    shape = {"num_kv_heads": H, "head_dim": D, "block_size": block_size, "dtype": torch.float16}
    kv = KVBlockManager(num_layers=1, num_blocks=4, device=torch.device("cpu"), **shape)
    big = torch.empty((num_blocks, H, block_size, D), dtype=torch.float16)
    kv.k_layers, kv.v_layers, kv.num_blocks = (big,), (big,), num_blocks
    kv._free_block_indices = [[0, num_blocks - 1, num_blocks - 2]]
    append = parts.kv_append(None, kv, EngineConfig(triton_kv_append_min_batch=min_batch))
    tables = [kv.allocate(0) for _ in range(3)]
    sessions = [type("Session", (), {"block_ids_per_layer": table}) for table in tables]
    for step in range(2):
        new = torch.arange(3 * H * D, dtype=torch.float16).view(3, H, D) / 7 + step
        append(sessions, [new], [new])
        assert torch.equal(big[[num_blocks - 2, num_blocks - 1, 0], :, step], new)


@EACH
def test_a_step_writes_the_new_slots_of_its_batch_and_no_other_byte(small_model, rung):
    """Hazard 21: with live sessions that are not in the batch, siblings of it too, and blocks in any order."""
    driver = Driver(small_model, rung)
    for seed, free in enumerate(driver.layout.all_free()):
        free[:] = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed)).tolist()
    for cache in (*driver.kv.k_layers, *driver.kv.v_layers):
        cache.fill_(7.0)
    live = a_mixed_batch(driver)
    for batch in ([0, 2, 3], [1, 5], [6], [0, 1, 2, 3, 4, 5, 6], [4, 2], [3, 5, 6]):
        sessions = [live[number] for number in batch]
        held_before = positions_held(driver.kv, live)
        own = [driver.layout.lists(session.table) for session in sessions]
        before = pool(driver.kv).view(torch.int32)
        driver.step(*sessions)
        changed = (pool(driver.kv).view(torch.int32) != before).any(dim=(0, 3, 5))  # [L, num_blocks, block_size]
        assert not (changed & held_before).any()
        for session, ids_before in zip(sessions, own, strict=True):
            last = session.num_cached_tokens - 1
            for layer, ids in enumerate(driver.layout.lists(session.table)):
                block, slot = ids[last // BS], last % BS
                assert changed[layer, block, slot]
                copied = len(ids) == len(ids_before[layer]) and ids != ids_before[layer]
                # One table copies whole blocks: nobody holds what lies behind the slots that are in use.
                end = BS if copied and isinstance(driver.layout, OneTable) else slot + 1
                changed[layer, block, 0 if copied else slot : end] = False
        if rung in PADDED:  # one that nobody can hold, at position 0
            changed[:, driver.kv.num_blocks, 0] = False
        assert not changed.any()


@BOTH
def test_a_session_of_nan_does_not_touch_its_neighbours(small_model, rung):
    """Hazard 16: one session's K and V are NaN, its own: the others' logits are equal to the last bit.

    Nobody is answered with a token made of NaN: which session it is is said before any has taken one.
    """
    clean, driver = (Driver(small_model, rung) for _ in range(2))
    for each in (clean, driver):
        each.start_lengths(3, 6, 8, 5)
    ill, *_ = driver.live[1:]
    for layer, ids in enumerate(driver.layout.lists(ill.table)):
        driver.kv.k_layers[layer][ids] = driver.kv.v_layers[layer][ids] = NAN
    well = [0, 2, 3]
    for _ in range(4):
        expected = clean.engine.decode_step_sessions(clean.live)
        found = driver.engine.decode_step_sessions(driver.live)
        assert torch.equal(found[well], expected[well])
        assert found[1].isnan().all()
        before = [list(session.token_ids) for session in driver.live]
        with pytest.raises(LogitsError, match=r"sessions \[1\]") as caught:
            driver.engine.take_tokens(driver.live, found)
        assert caught.value.rows == [1]
        assert [session.token_ids for session in driver.live] == before
        driver.engine.take_tokens([driver.live[b] for b in well], found[well])
        clean.engine.take_tokens(clean.live, expected)
        ill.token_ids.append(clean.live[1].token_ids[-1])  # so that it can go on beside them
        check(driver.engine, driver.live)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_staging_buffer_is_not_rewritten_while_a_copy_is_in_flight():
    """Hazard 20: the stream is held up for a while before each copy; and a buffer that does not wait does go wrong."""
    shown = {}
    for waits in (True, False):
        buffer = StagingBuffer(1 << 20, torch.int64, torch.device("cuda"))
        if not waits:
            buffer.host(1), buffer.to_device()
            buffer._copied = type("Event", (), {"synchronize": lambda self: None, "record": lambda self: None})()
        copies = []
        for value in range(1, 5):
            torch.cuda._sleep(100_000_000)  # cycles, some 50 ms
            buffer.host(1 << 20).fill_(value)
            copies.append(buffer.to_device().clone())
        shown[waits] = [copy.unique().tolist() for copy in copies]
    assert shown[True] == [[1], [2], [3], [4]]
    assert shown[False] != shown[True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "066-graphs"])  # whose graphs are a CPU's
def test_tokens_are_the_same_when_the_stream_is_late(rung):
    """Hazard 20: every copy of tables and inputs is still to come when the next step would write the buffers."""
    model = random_model("gpt2", dtype="float32", device="cuda")
    found = []
    for delay in (0, 20_000_000):
        driver = Driver(model, rung)
        sessions = driver.start(*prompts_of([3, 4, 5, 9], 211))
        logits = []
        for _ in range(5):
            torch.cuda._sleep(delay)
            logits.append(driver.engine.decode_step_sessions(sessions))
            for session in sessions:
                session.token_ids.append(5 + len(session.token_ids))  # without waiting for the device
        found.append(torch.stack(logits).cpu())
    assert torch.equal(*found)
