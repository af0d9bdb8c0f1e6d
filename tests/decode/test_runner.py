"""The runner: eager, padded and as graphs make the same tokens; captures, also those that fail."""

import warnings

import pytest
import torch

from rosecourse import BEST, ConfigError, InferenceEngine, lesson
from rosecourse.decode.runner import buckets_up_to
from rosecourse.lab.checking.cpu_graph import CPUGraph
from tests.decode.runners import FIXED, KINDS, PARTS, engine_of, sessions_of, step, traffic
from tests.support.graph_runners import CPUGraphRunner, CPUGraphRunnerOf066


def test_each_batch_size_has_a_bucket_that_is_not_much_larger():
    assert [buckets_up_to(most) for most in (1, 3)] == [(1,), (1, 2, 3)]
    assert buckets_up_to(37) == (1, 2, 4, 8, 16, 24, 32, 37)
    for most in range(1, 140):
        buckets = buckets_up_to(most)
        assert buckets[-1] == most
        assert list(buckets) == sorted(set(buckets))
        for size in range(1, most + 1):
            assert min(bucket for bucket in buckets if bucket >= size) < max(2 * size, size + 8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "065"])
def test_all_make_the_tokens_of_the_lesson_before(small_model, kind):
    found, expected = (traffic(engine_of(small_model, KINDS[name])) for name in (kind, "065"))
    assert found == expected
    assert len(expected) > 5


def test_a_padded_step_is_no_wider_than_the_cache(small_model):
    """Contexts may be far longer than all blocks together; torch's sparse product is wrong for such a width."""
    made = []
    for parts in KINDS.values():
        engine = engine_of(small_model, parts, num_blocks=5, max_seq_len=96)
        sessions = sessions_of(engine, [3])
        for _ in range(5):
            step(engine, sessions)
        made.append(sessions[0].completion_ids)
    assert made[1:] == made[:1] * 4


@pytest.mark.parametrize("rung", ["066", "071"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has graphs")
def test_where_there_are_no_graphs_nothing_is_said_of_them(small_model, rung):
    engine = engine_of(small_model, lesson(rung).after)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(engine, sessions_of(engine, [3, 4], temperature=1.0))
    runner = engine.decode_step.runner
    assert (runner.graphs, runner.memory_bytes) == ({}, 0)


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (BEST.with_(step=lesson("063").after.step), "block_tables"),
        (BEST.with_(rows=None), "rows"),
        (lesson("063").after.with_(copy_blocks=None), "copy_blocks"),
        (lesson("061").after.with_(block_tables=None), "block_tables"),
    ],
)
def test_a_step_names_the_part_that_it_misses(small_model, parts, missing):
    with pytest.raises(ConfigError, match=f"the step needs a part `{missing}`, and there is none"):
        InferenceEngine(small_model, parts=parts)


# -- capture ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["graphs", "graphs of 066"])
def test_graphs_that_sample_are_captured_late_with_one_warning(small_model, kind):
    engine = engine_of(small_model, KINDS[kind])
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
    assert engine_of(small_model, PARTS).decode_step.runner.graphs == {}  # a CPU has none of its own
    assert engine_of(small_model, KINDS["graphs"]).decode_step.runner.memory_bytes == 0  # a CPU's are not told apart
    left = iter(range(10_000, 0, -10))
    monkeypatch.setattr("rosecourse.decode.runner.free_memory", lambda device: next(left))
    engine = engine_of(small_model, KINDS["graphs"])
    captured = len(buckets_up_to(11))
    assert engine.decode_step.runner.memory_bytes == 10 * captured
    step(engine, sessions_of(engine, [3], temperature=1.0))
    assert engine.decode_step.runner.memory_bytes == 10 * (captured + 1)


class Fails(CPUGraph):
    """Its n-th capture fails."""

    left, error = 0, RuntimeError("CUDA error: out of memory\nand many lines more")

    def capture(self, work):
        Fails.left -= 1
        if Fails.left == 0:
            raise self.error
        super().capture(work)


class FailingRunner(CPUGraphRunner):
    def graphs_of(self, device):
        return Fails


class FailingRunnerOf066(CPUGraphRunnerOf066):
    graphs_of = FailingRunner.graphs_of


FAILING = [(FailingRunner, 1), (FailingRunner, 3), (FailingRunner, 6), (FailingRunnerOf066, 3)]


@pytest.mark.parametrize(("runner", "nth"), FAILING)
def test_where_a_capture_fails_steps_run_eagerly(small_model, monkeypatch, runner, nth):
    """The sixth is the first that samples, in the middle of a request."""
    Fails.left = nth
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = engine_of(small_model, FIXED.with_(runner=runner))
        found = traffic(engine)
    said = [str(one.message) for one in caught if "captured as they are needed" not in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("no graph of ")
    assert said[0].endswith("so decode steps run eagerly: CUDA error: out of memory")
    assert (engine.decode_step.runner.graphs, engine.decode_step.runner.memory_bytes) == ({}, 0)
    assert found == traffic(engine_of(small_model, KINDS["065"]))
    Fails.left = nth
    monkeypatch.setattr(Fails, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):  # an interrupt ends it
        traffic(engine_of(small_model, FIXED.with_(runner=runner)))
