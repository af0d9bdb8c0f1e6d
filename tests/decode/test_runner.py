"""The runner: eager, padded and as graphs make the same tokens; pads; captures, also those that fail."""

import warnings

import pytest
import torch

from rosecourse.decode.runner import buckets_up_to
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.lab.checking.cpu_runners import CPUGraphRunner
from tests.decode.runners import FIXED, KINDS, PARTS, engine_of, random_traffic, sessions_of, step
from tests.support.hazards import pool_bytes


def test_each_batch_size_has_a_bucket_that_is_not_much_larger():
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(3) == (1, 2, 3)
    assert buckets_up_to(16) == (1, 2, 4, 8, 16)
    assert buckets_up_to(37) == (1, 2, 4, 8, 16, 24, 32, 37)
    for most in range(1, 140):
        buckets = buckets_up_to(most)
        assert buckets[-1] == most
        assert list(buckets) == sorted(set(buckets))
        for size in range(1, most + 1):
            assert min(bucket for bucket in buckets if bucket >= size) < max(2 * size, size + 8)


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_all_make_the_tokens_of_the_lesson_before(small_model, kind):
    found, expected = (random_traffic(engine_of(small_model, KINDS[name]), 1) for name in (kind, "065"))
    assert found == expected
    assert len(expected) > 5


# -- pads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["padded", "graphs"])
def test_pads_write_into_the_spare_block_and_nowhere_else(small_model, kind):
    """Three sessions in a bucket of 4, after nine were there: their rows hold what the others have left."""
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    for _ in range(3):
        step(engine, sessions)
    for session in sessions[3:]:
        engine.free(session)
    live, kv = sessions[:3], engine.kv
    kv.keys.fill_(float("nan"))  # nobody reads a slot again that is not written here
    was = [kv.keys.clone(), kv.values.clone()]
    slots = {(s.table[s.num_cached_tokens // 4], s.num_cached_tokens % 4) for s in live if s.num_cached_tokens % 4}
    assert slots
    engine.decode_step_sessions(live)
    written = {
        (block, slot)
        for before, now in zip(was, (kv.keys, kv.values), strict=True)
        for block, slot in ((before != now) & ~now.isnan()).any(dim=(0, 2, 4)).nonzero().tolist()
    }
    new = {(s.table[-1], (s.num_cached_tokens - 1) % 4) for s in live}
    assert written - new <= {(kv.num_blocks, 0)}
    rows = engine.decode_step.rows
    assert rows.fields[-1].tolist() == [1] * 3 + [0] * 8  # who is live
    assert rows.view(11).inputs.context_lens[3:].tolist() == [0] * 8
    assert (rows.block_tables[3:, 0] == kv.num_blocks).all()


def test_a_padded_step_is_no_wider_than_the_cache(small_model):
    """Contexts may be far longer than all blocks together; torch's sparse product is wrong for such a width."""
    made = []
    for parts in KINDS.values():
        engine = engine_of(small_model, parts, num_blocks=5, max_seq_len=96)
        sessions = sessions_of(engine, [3])
        for _ in range(5):
            step(engine, sessions)
        made.append(sessions[0].completion_ids)
    assert made[1:] == made[:1] * 3


# -- capture ----------------------------------------------------------------------------------------------------------


def test_a_capture_changes_nothing_but_the_spare_block(small_model):
    engine = engine_of(small_model, KINDS["graphs"])
    sessions = sessions_of(engine, [3, 8, 5])
    step(engine, sessions)
    runner, rows, spare = engine.decode_step.runner, engine.decode_step.rows, engine.kv.num_blocks
    greedy = set(runner.graphs)
    engine.kv.keys[:, spare] = engine.kv.values[:, spare] = 0
    was = pool_bytes(engine.kv), rows.state.tolist()
    with torch.inference_mode():
        runner._capture(4, True)
    engine.kv.keys[:, spare] = engine.kv.values[:, spare] = 0
    assert (pool_bytes(engine.kv), rows.state.tolist()) == was
    assert set(runner.graphs) - greedy == {(4, True)}


def test_graphs_that_sample_are_captured_late_with_one_warning(small_model):
    engine = engine_of(small_model, KINDS["graphs"])
    greedy = set(engine.decode_step.runner.graphs)
    assert greedy == {(bucket, False) for bucket in buckets_up_to(11)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for temperature in (0.0, 1.0):
            assert caught == []
            for lengths in ([3], [3, 4], [3, 4, 5, 6]):
                step(engine, sessions_of(engine, lengths, temperature=temperature))
    (line,) = [str(one.message) for one in caught]
    assert line.startswith("graphs of steps that sample are captured as they are needed")
    assert set(engine.decode_step.runner.graphs) - greedy == {(1, True), (2, True), (4, True)}


def test_the_memory_that_captures_take_is_summed_up(small_model, monkeypatch):
    """Of a device that has 10 bytes fewer whenever it is asked."""
    assert engine_of(small_model, KINDS["graphs"]).decode_step.runner.memory_bytes == 0  # a CPU's are not told apart
    left = iter(range(10_000, 0, -10))
    monkeypatch.setattr("rosecourse.decode.runner.free_memory", lambda device: next(left))
    engine = engine_of(small_model, KINDS["graphs"])
    captured = len(buckets_up_to(11))
    assert engine.decode_step.runner.memory_bytes == 10 * captured
    step(engine, sessions_of(engine, [3], temperature=1.0))
    assert engine.decode_step.runner.memory_bytes == 10 * (captured + 1)


def test_a_cpu_has_no_graphs_of_its_own(small_model):
    assert engine_of(small_model, PARTS).decode_step.runner.graphs == {}


class Fails(CPUGraph):
    """Its n-th capture fails."""

    left = 0

    def capture(self, work):
        Fails.left -= 1
        if Fails.left == 0:
            raise RuntimeError("CUDA error: out of memory\nand many lines more")
        super().capture(work)


class FailingRunner(CPUGraphRunner):
    def graphs_of(self, device):
        return Fails


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_where_a_capture_fails_steps_run_eagerly_with_a_warning(small_model, nth):
    """The sixth is the first that samples, in the middle of a request."""
    Fails.left = nth
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = engine_of(small_model, FIXED.with_(runner=FailingRunner))
        found = random_traffic(engine, 1)
    said = [str(one.message) for one in caught if "captured as they are needed" not in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("no graph of ")
    assert said[0].endswith("so decode steps run eagerly: CUDA error: out of memory")
    assert (engine.decode_step.runner.graphs, engine.decode_step.runner.memory_bytes) == ({}, 0)
    assert found == random_traffic(engine_of(small_model, KINDS["065"]), 1)


def test_an_interrupt_during_a_capture_ends_it(small_model, monkeypatch):
    def interrupted(graph, work):
        raise KeyboardInterrupt

    monkeypatch.setattr(CPUGraph, "capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine_of(small_model, KINDS["graphs"])
