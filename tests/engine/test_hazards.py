"""How a KV cache goes wrong, 1 to 33, or trust is lost, 34 to 40: what the random machine cannot see of it.

Each has a test whose docstring names it.
"""

import ast
import dataclasses
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton.runtime.interpreter as triton_interpreter

from rosecourse import EngineConfig, KVCacheExhausted, OnlineScheduler, random_model
from rosecourse.decode import Batch, DecodeStep
from rosecourse.decode import runner as device_step
from rosecourse.kernels import AppendingAttention, choose, triton_runs_on
from rosecourse.kernels.appending_attention import attend_and_append
from rosecourse.kv import prefix_cache as prefix_cache_module
from rosecourse.lessons.l035_blocks import KVBlockManager
from tests.support.fewer_kernels import BEFORE, INTERPRETED, PADDED
from tests.support.hazards import BS, INTERPRETED_RUNGS, RUNGS, Driver, pool
from tests.support.late_device import Behind
from tests.support.layouts import OneTable, layout_of
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine, run, submit

BOTH = pytest.mark.parametrize("rung", ["061", "071"])  # a list of blocks for each layer, and one for all


def test_every_hazard_is_named_by_a_test():
    found = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= {*re.findall(r"\bHazard (\d+)\b", ast.get_docstring(node) or "")}
    assert found == {str(number) for number in range(1, 41)}


def failing_at(driver, monkeypatch, number):
    """Let the allocation of a block fail at its call `number`, counted from 0; returns the calls."""
    real, calls = driver.kv.allocate_block, []

    def allocate_block(*args):
        calls.append(args)
        if len(calls) == number + 1:
            raise KVCacheExhausted("injected")
        return real(*args)

    monkeypatch.setattr(driver.kv, "allocate_block", allocate_block)
    return calls


def a_batch_that_needs_blocks(driver):
    """Sessions at a block's end, inside a block, three that share a block that is not full: 5 blocks a layer."""
    sessions = driver.start_lengths(4, 6, 8, 4, 2)
    driver.fork(sessions[1], token_id=7)
    driver.fork(sessions[1], token_id=9)
    return 5


CALLS = {
    "reserve": lambda driver: driver.engine.reserve(driver.session([3] * 14)),
    "reserve with a hit of two blocks": lambda driver: driver.engine.reserve(driver.session([8] * 14)),
    "prefill": lambda driver: driver.engine.prefill([driver.session([n] * 9) for n in (1, 2)]),
    "step": lambda driver: driver.engine.decode_step_sessions(driver.live),  # one of 061 allocates layer by layer
}
CASES = [(rung, call) for rung in ("061", "071") for call in CALLS if (rung, call) != ("061", "step")]


@pytest.mark.parametrize(("rung", "call"), CASES)
def test_allocation_that_fails_at_any_call_changes_nothing(small_model, monkeypatch, rung, call):
    """Hazard 3, Hazard 24: a failure at call k for every k, until there are no more."""
    driver = Driver(small_model, rung, prefix_cache=True)
    driver.start([8] * 8)
    a_batch_that_needs_blocks(driver)
    before = driver.snapshot()
    for number in count():
        with monkeypatch.context() as patch:
            calls = failing_at(driver, patch, number)
            try:
                CALLS[call](driver)
                break
            except KVCacheExhausted:
                assert len(calls) == number + 1
        assert driver.snapshot() == before
        driver.check()
    assert number > 1


@BOTH
def test_step_that_lacks_any_number_of_blocks_changes_nothing(small_model, rung):
    """Hazard 3, Hazard 4, Hazard 10: a batch that lacks blocks, for copies too, is refused; no byte has changed."""
    driver = Driver(small_model, rung)
    needed = a_batch_that_needs_blocks(driver)
    for available in range(needed):
        hog = driver.kv.allocate((driver.kv.num_available() - available) * BS)
        before = driver.snapshot()
        with pytest.raises(KVCacheExhausted, match="free or preempt one"):
            driver.engine.decode_step_sessions(driver.live)
        assert driver.snapshot() == before
        driver.kv.free(hog)
    hog = driver.kv.allocate((driver.kv.num_available() - needed) * BS)
    driver.engine.take_tokens(driver.live, driver.engine.decode_step_sessions(driver.live))
    assert driver.kv.num_available() == 0
    driver.kv.free(hog)
    driver.check()


@BOTH
def test_colliding_keys_compare_the_tokens(small_pair, monkeypatch, rung):
    """Hazard 15: with one hash for all, the wrong block is never used, and the right one is still found.

    Hazard 13: of a prompt that is known as a whole, the last block is computed.
    """
    hf, model = small_pair

    class Colliding(prefix_cache_module.PrefixKey):
        def __hash__(self):
            return 1

    monkeypatch.setattr(prefix_cache_module, "PrefixKey", Colliding)
    driver = Driver(model, rung, prefix_cache=True)
    a, b = prompts_of([3 * BS, 3 * BS], 211)
    mixed = [[*a[:BS], *b[BS:]], [*b[:BS], *a[BS:]], [*a[: 2 * BS], *b[:BS]]]
    hits = []
    for prompt in (a, b, *mixed, a):
        driver.live.append(session := driver.session(prompt))
        driver.engine.reserve(session)
        hits.append(session.num_cached_tokens)
        driver.engine.take_tokens([session], driver.engine.prefill([session]))
        driver.check()
    assert hits == [0, 0, BS, BS, 2 * BS, 2 * BS]
    for _ in range(4):
        driver.step()
    assert [s.completion_ids for s in driver.live] == hf_greedy(hf, [s.prompt_ids for s in driver.live], 5)


NAN = float("nan")
PADS = ("066-padded", "066-graphs", "069-padded")  # they run over pads too
EACH = pytest.mark.parametrize("rung", RUNGS | ({} if torch.cuda.is_available() else INTERPRETED_RUNGS))


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
    expected = [clean.step() for _ in range(3)]
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
    for number in range(3):
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
def test_table_shows_the_blocks_of_now(small_model, rung):
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


@pytest.mark.parametrize("rung", ["059", "061-triton"])
def test_append_reaches_blocks_past_2_to_the_31_elements(rung, monkeypatch):
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
    sessions = [SimpleNamespace(block_ids_per_layer=kv.allocate(0)) for _ in range(3)]
    for step in range(2):
        new = torch.arange(3 * H * D, dtype=torch.float16).view(3, H, D) / 7 + step
        append(sessions, [new], [new])
        assert torch.equal(big[[num_blocks - 2, num_blocks - 1, 0], :, step], new)


@EACH
def test_step_writes_the_new_slots_of_its_batch_alone(small_model, rung):
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
        if rung in PADS:  # one that nobody can hold, at position 0
            changed[:, driver.kv.num_blocks, 0] = False
        assert not changed.any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled where there is a GPU")
@pytest.mark.parametrize("parts", [INTERPRETED, PADDED], ids=["eager", "padded"])
def test_kernels_one_step_behind_make_the_tokens_of_before(small_model, parts, monkeypatch):
    """They are what runs: each layer's attention, and the end of each step."""
    calls = {"attend": 0, "choose": 0}

    def counted(name, function):
        def call(*args):
            calls[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(AppendingAttention, "attention", staticmethod(counted("attend", attend_and_append)))
    monkeypatch.setattr(device_step, "choose", counted("choose", choose))
    told = []
    for each in (BEFORE, parts.with_(pipeline=Behind)):
        scheduler = OnlineScheduler(make_engine(small_model, each, max_seq_len=40))
        sessions = submit(scheduler, [BS - 1, BS, 2 * BS + 3], 5)
        run(scheduler)
        told.append([session.completion_ids for session in sessions])
    assert told[0] == told[1]
    assert calls == {"attend": 3 * 4, "choose": 4}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "066-graphs"])  # whose graphs are a CPU's
def test_logits_are_the_same_when_the_stream_is_late(rung):
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
