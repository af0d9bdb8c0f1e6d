"""The counters: what they see of an engine and of each lesson's part."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch

from rosecourse import BASELINE, LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.measure.counters import Counts, count_step, counts_table, watch

L, B = 3, 4  # layers of the small model; sessions
PARAMS = SamplingParams(max_new_tokens=20, stop_on_eos=False)


def started(model, parts, length, **config):
    """An engine with a block size of 4, and prefilled sessions of `length` tokens each."""
    config = {"block_size": 4, "max_batch_size": B, "max_seq_len": 40, "prefix_cache": False} | config
    engine = InferenceEngine(model, EngineConfig(**config), parts)
    sessions = [engine.new_session([n + 1] * length, PARAMS) for n in range(B)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return engine, sessions


def counted(model, number, length, part="kv_append", **config):
    return count_step(*started(model, lesson(number).after, length, **config), part)


@pytest.mark.parametrize(
    ("length", "expected"),  # inside a block, and where every session begins a new one; of 035, 038, 059 and 060
    [
        (5, [[L * B, 0, 0, 0], [0, 3 * L, 3 * L, L], [0, 2 * L, 2 * L, 0], [0] + 3 * [2 * L], [2 * L * B, 0, 0, 0]]),
        (8, [[L * B, L * B, 0, 0], [0, 0, 3 * L, L], [0, 0, 2 * L, 0], [0, 0, 2 * L, 2 * L], [2 * L * B] * 2 + [0, 0]]),
    ],
)
def test_an_append_has_less_of_what_each_lesson_takes(small_model, length, expected):
    seen = [counted(small_model, number, length) for number in ("035", "038", "059", "060")]
    names = "append_token calls", "tensors built from Python lists", "index_select", "index_put", "copy"
    assert [[one.rows()[name] for one in seen] for name in names] == expected
    assert [one.device_bytes for one in seen] == [one.list_tensors * B * 8 for one in seen]
    assert [one.calls_of("append_token_batch") for one in seen] == [L] * 4
    table = counts_table({"seen": seen[2], "nothing": Counts()})
    assert table.loc["index_select"].tolist() == [2 * L, 0]
    assert "append_token calls" not in table.index  # zero everywhere


def test_block_tables_are_handed_over_whole_and_built_once(small_model):
    """Rows of 10 int32 for each layer and session go to the device at each step, whoever has built them."""
    built = counted(small_model, "035", 5, "block_tables")
    assert (built.list_tensors, built.device_bytes) == (L, L * B * 10 * 4)
    engine, sessions = started(small_model, lesson("036").after, 5)
    first, second = (count_step(engine, sessions, "block_tables") for _ in range(2))
    assert (first.list_tensors, first.numpy_views, second.numpy_views) == (0, L * B, 0)
    assert first.device_bytes == second.device_bytes == L * B * 10 * 4
    assert second.operations_of("stack") == L


def test_a_whole_step_counts_its_parts_and_nothing_of_the_watch(small_model):
    engine, sessions = started(small_model, BASELINE, 5)
    seen = count_step(engine, sessions)
    assert seen.calls["KVBlockManager.append_token"] == seen.calls_of("append_token") == L * B
    assert [len(session.completion_ids) for session in sessions] == [2] * B
    assert not any(name.startswith(("Watch", "Counter")) for name in seen.calls)


@pytest.mark.parametrize(("gate", "kernel"), [(B, "kv_append_triton_full_batch"), (B + 1, "kv_append_triton")])
def test_a_launch_counts_once_whatever_its_interpreter_does(small_model, gate, kernel):
    gates = {"triton_kv_append_min_batch": B, "triton_kv_append_full_batch_min_batch": gate}
    seen = counted(small_model, "061", 5, **gates)
    assert seen.launches == {kernel: L}
    assert seen.operations_of("copy") == seen.operations_of("index_put") == 0


DEVICE = torch.device("cpu")
MADE = [  # what makes a tensor; how many are made of lists, their bytes, and the bytes that go to the device
    (lambda: torch.tensor([1, 2, 3]), 1, 24, 0),  # stays on the host
    (lambda: torch.tensor([1, 2, 3], device="cpu"), 1, 24, 0),  # by a word: on any machine it stays there
    (lambda: torch.tensor([1, 2, 3], device=DEVICE), 1, 24, 24),
    (lambda: torch.as_tensor([1.0, 2.0], device=DEVICE), 1, 8, 8),
    (lambda: torch.tensor([1, 2]).to("cpu"), 1, 16, 16),  # made on the host, then moved
    (lambda: torch.tensor([1, 2]).to(torch.int32), 1, 16, 0),  # another type, not another place
    (lambda: torch.tensor(7, device="cpu"), 0, 0, 0),  # a number is no list
    (lambda: torch.arange(4)[[1, 2]], 1, 16, 16),
    (lambda: torch.from_numpy(np.arange(3)), 0, 0, 0),  # another look at the array
    (lambda: torch.from_numpy(np.arange(3)).to("cpu"), 1, 24, 24),
    (lambda: torch.from_numpy(np.arange(3)).to(torch.int32), 0, 0, 0),
    (lambda: (torch.from_numpy(np.arange(3)), torch.tensor([1, 2], device=DEVICE)), 1, 16, 16),
]


@pytest.mark.parametrize(("make", "tensors", "num_bytes", "handed"), MADE)
def test_a_tensor_is_handed_over_where_it_leaves_the_host(make, tensors, num_bytes, handed):
    buffer = StagingBuffer(10, torch.int32, DEVICE)
    with watch() as seen:
        make()
        buffer.host(2, 3).fill_(1)
        buffer.to_device()
    assert (seen.list_tensors, seen.list_bytes, seen.device_bytes) == (tensors, num_bytes, handed + 24)


def test_a_count_of_a_part_sees_that_part_alone(small_model):
    """It leaves no trace, also after an error."""
    engine, sessions = started(small_model, lesson("061").after, 5)
    profiler, part = sys.getprofile(), engine.decode_step.kv_append
    with watch() as whole:
        seen = count_step(engine, sessions, "kv_append")
    assert seen.list_tensors == L < whole.list_tensors
    assert seen.operations["addmm"] == 0 < whole.operations["addmm"]
    with pytest.raises(AttributeError, match="no_such_part"):
        count_step(engine, sessions, "no_such_part")
    with pytest.raises(TypeError), watch() as seen:
        torch.zeros("nonsense")
    torch.zeros(1)
    assert (sys.getprofile(), engine.decode_step.kv_append, seen.operations) == (profiler, part, {})


def steps_of(model, parts, kind):
    """The counts and launches of five steps, which change no token; right after forks if the lesson is about these."""
    sides = [started(model, parts, 5, triton_kv_append_min_batch=B) for _ in range(2)]
    rows, launches = Counter(), Counter()
    for _ in range(5):
        for engine, sessions in sides if kind == "fork" else []:
            for session in sessions[1:]:
                engine.free(session)
            sessions[1:] = [engine.fork(sessions[0]) for _ in sessions[1:]]
        counts = count_step(*sides[0])
        rows.update(counts.rows())
        launches.update(counts.launches)
        engine, sessions = sides[1]
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    assert [s.token_ids for s in sides[0][1]] == [s.token_ids for s in sessions]
    return rows, launches


@pytest.mark.parametrize("rung", LESSONS[1:], ids=lambda rung: rung.number)
def test_a_step_has_fewer_of_what_a_lesson_counts(rung, small_model):
    before, _ = steps_of(small_model, rung.before, rung.step_kind)
    after, launches = steps_of(small_model, rung.after, rung.step_kind)
    assert rung.counted or rung.number >= "066"  # a CPU has no graph, no pipeline, no reader, no kernels
    assert [name for name in rung.counted if not after[name] < before[name]] == []
    assert {*launches} >= {*rung.kernels}


def test_the_second_half_hands_over_less_and_less(small_model):
    """In the second step, when the rows are there: by hand, tables of 10 int32, inputs and slots of B sessions."""
    inputs, table, slots = 2 * B * 8, B * 10 * 4, B * 8
    expected = {"061": L * table + inputs + L * slots, "062": table + inputs + slots, "063": table + inputs, "064": 0}
    for number, handed in (expected | {"066": 0}).items():
        engine, sessions = started(small_model, lesson(number).after, 5)
        count_step(engine, sessions)
        found = count_step(engine, sessions)
        assert (found.device_bytes, found.list_tensors == 0) == (handed, handed == 0), number


def test_what_a_replay_does_counts_as_one():
    x, graph = torch.zeros(3), CPUGraph()
    with watch() as seen:
        graph.capture(lambda: x.add_(1).mul_(2))
    assert seen.replays == 0
    with watch() as seen:
        graph.replay()
        graph.replay()
        x.add_(1)
    assert (seen.replays, seen.operations_of("add"), seen.operations_of("mul")) == (2, 1, 0)
    assert x.tolist() == [7, 7, 7]
