"""The counters: what they see of an engine, of each lesson's part and of a class that a learner writes."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch

from rosecourse import BASELINE, LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.kernels import triton_runs_on
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.measure.counters import Counts, count_step, counts_table, watch

STAGED = lesson("061").after  # block tables and append are stages of its step
L, B = 3, 4  # layers of the small model; sessions
PARAMS = SamplingParams(max_new_tokens=20, stop_on_eos=False)


def started(model, parts, length, batch=B, **config):
    """An engine with a block size of 4, and prefilled sessions of `length` tokens each."""
    config = {"block_size": 4, "max_batch_size": batch, "max_seq_len": 40, "prefix_cache": False} | config
    engine = InferenceEngine(model, EngineConfig(**config), parts)
    sessions = [engine.new_session([n + 1] * length, PARAMS) for n in range(batch)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return engine, sessions


def fork_anew(engine, sessions):
    """All sessions but the first become new forks of the first, whose last block the next step copies."""
    for session in sessions[1:]:
        engine.free(session)
    sessions[1:] = [engine.fork(sessions[0]) for _ in sessions[1:]]


def counted(model, number, length, part="kv_append", **config):
    return count_step(*started(model, lesson(number).after, length, **config), part)


def test_what_each_lesson_takes_away_from_the_append(small_model):
    """Inside a block, and where every session begins a new one: the numbers follow from L and B alone."""
    inside = {n: counted(small_model, n, 5).rows() for n in ("035", "038", "059", "060")}
    rolling = {n: counted(small_model, n, 8).rows() for n in ("035", "038", "059", "060")}

    def row(name):
        return [tuple(found[n][name] for n in found) for found in (inside, rolling)]

    assert row("append_token calls") == [(L * B, 0, 0, 0), (L * B, L * B, 0, 0)]
    assert row("append_token_batch calls") == [(L, L, L, L)] * 2
    assert row("tensors built from Python lists") == [(0, 3 * L, 3 * L, L), (0, 0, 3 * L, L)]
    assert row("bytes of these") == [(0, 3 * L * B * 8, 3 * L * B * 8, L * B * 8), (0, 0, 3 * L * B * 8, L * B * 8)]
    assert row("bytes handed to the device") == row("bytes of these")
    assert row("index_select") == [(0, 2 * L, 2 * L, 0), (0, 0, 2 * L, 0)]
    assert row("index_put") == [(0, 2 * L, 2 * L, 2 * L), (0, 0, 2 * L, 2 * L)]
    assert row("copy") == [(2 * L * B, 0, 0, 0), (2 * L * B, 2 * L * B, 0, 0)]
    table = counts_table({"038": counted(small_model, "038", 5), "nothing": Counts()})
    assert table.loc["index_select"].tolist() == [2 * L, 0]
    assert "append_token calls" not in table.index  # zero everywhere


def test_the_block_tables_are_handed_over_whole_and_built_only_once(small_model):
    """Rows of 10 int32 for each layer and session go to the device at each step, whoever has built them."""
    assert counted(small_model, "035", 5, "block_tables").rows() | {"copy": 0} == Counts().rows() | {
        "tensors built from Python lists": L,
        "bytes of these": L * B * 10 * 4,
        "bytes handed to the device": L * B * 10 * 4,
        "select (a view)": L,
    }
    engine, sessions = started(small_model, lesson("036").after, 5)
    first, second = (count_step(engine, sessions, "block_tables") for _ in range(2))
    assert (first.list_tensors, first.numpy_views, second.numpy_views) == (0, L * B, 0)
    assert first.device_bytes == second.device_bytes == L * B * 10 * 4
    assert second.operations_of("stack") == L


def test_a_whole_step_has_the_calls_of_its_parts_and_the_session_goes_on(small_model):
    engine, sessions = started(small_model, BASELINE, 5)
    seen = count_step(engine, sessions)
    assert seen.calls["KVBlockManager.append_token"] == seen.calls_of("append_token") == L * B
    assert seen.calls["AppendAfterForward.__call__"] == 1
    assert [len(session.completion_ids) for session in sessions] == [2] * B
    inputs = 2 * B * 8  # the last tokens and the lengths, int64
    assert seen.device_bytes == L * B * 10 * 4 + inputs
    assert not any(name.startswith(("Watch", "Counter")) for name in seen.calls)  # nothing of what watches


@pytest.mark.skipif(not triton_runs_on(torch.device("cpu")), reason="no Triton on this device")
@pytest.mark.parametrize(
    ("full_batch_min_batch", "kernel"), [(B, "kv_append_triton_full_batch"), (B + 1, "kv_append_triton")]
)
def test_launches_are_counted_and_not_what_the_interpreter_does_for_them(small_model, full_batch_min_batch, kernel):
    gates = {"triton_kv_append_min_batch": B, "triton_kv_append_full_batch_min_batch": full_batch_min_batch}
    seen = counted(small_model, "061", 5, **gates)
    assert seen.launches == {kernel: L}
    assert seen.operations_of("copy") == seen.operations_of("index_put") == 0
    assert counted(small_model, "061", 5).launches == {}


class LearnersAppend:
    """What a learner may write: lists as indices, and a method of the same name."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def append_token_batch(self, layer, block_ids_list, key_new, value_new):
        infos = [self.kv.info(ids[-1]) for ids in block_ids_list]
        blocks = [info.block_index for info in infos]
        self.kv.k_layers[layer][blocks, :, infos[0].length] = key_new
        self.kv.v_layers[layer][blocks, :, infos[0].length] = value_new
        for info in infos:
            info.length += 1


def test_a_learners_class_is_counted_like_ours(small_model):
    seen = count_step(*started(small_model, BASELINE.with_(kv_append=LearnersAppend), 5), "kv_append")
    assert seen.calls["LearnersAppend.append_token_batch"] == seen.calls_of("append_token_batch") == L
    assert (seen.calls_of("append_token"), seen.list_tensors, seen.operations_of("index_put")) == (0, 2 * L, 2 * L)
    assert seen.device_bytes == seen.list_bytes == 2 * L * B * 8


@pytest.mark.parametrize(
    ("make", "tensors", "num_bytes", "handed"),
    [
        (lambda: torch.tensor([1, 2, 3]), 1, 24, 0),  # stays on the host
        (lambda: torch.tensor([1, 2, 3], device="cpu"), 1, 24, 0),  # by a word: on any machine it stays there
        (lambda: torch.tensor([1, 2, 3], device=torch.device("cpu")), 1, 24, 24),
        (lambda: torch.as_tensor([1.0, 2.0], device=torch.device("cpu")), 1, 8, 8),
        (lambda: torch.tensor([1, 2]).to("cpu"), 1, 16, 16),  # made on the host, then moved
        (lambda: torch.tensor([1, 2]).to(torch.int32), 1, 16, 0),  # another type, not another place
        (lambda: torch.tensor(7, device="cpu"), 0, 0, 0),  # a number is no list
        (lambda: torch.zeros(3), 0, 0, 0),
        (lambda: torch.arange(4)[[1, 2]], 1, 16, 16),
        (lambda: torch.from_numpy(np.arange(3)), 0, 0, 0),  # another look at the array
        (lambda: torch.from_numpy(np.arange(3)).to("cpu"), 1, 24, 24),
        (lambda: torch.from_numpy(np.arange(3)).to(torch.int32), 0, 0, 0),
        (lambda: (torch.from_numpy(np.arange(3)), torch.tensor([1, 2], device=torch.device("cpu"))), 1, 16, 16),
    ],
)
def test_which_tensors_are_handed_to_the_device(make, tensors, num_bytes, handed):
    with watch() as seen:
        make()
    assert (seen.list_tensors, seen.list_bytes, seen.device_bytes) == (tensors, num_bytes, handed)


def test_what_a_staging_buffer_gives_is_handed_over():
    buffer = StagingBuffer(10, torch.int32, torch.device("cpu"))
    with watch() as seen:
        buffer.host(2, 3).fill_(1)
        buffer.to_device()
    assert (seen.device_bytes, seen.list_tensors) == (24, 0)


def test_a_count_of_a_part_sees_that_part_only_and_leaves_no_trace(small_model):
    engine, sessions = started(small_model, STAGED, 5)
    profiler, part = sys.getprofile(), engine.decode_step.kv_append
    with watch() as whole:
        seen = count_step(engine, sessions, "kv_append")
    assert seen.calls_of("append_token_batch") == whole.calls_of("append_token_batch") == L
    assert seen.list_tensors == L < whole.list_tensors
    assert seen.operations["addmm"] == 0 < whole.operations["addmm"]
    assert (sys.getprofile(), engine.decode_step.kv_append) == (profiler, part)
    with pytest.raises(AttributeError, match="no_such_part"):
        count_step(engine, sessions, "no_such_part")


def test_a_watch_ends_after_an_error(small_model):
    profiler = sys.getprofile()
    with pytest.raises(TypeError), watch() as seen:
        torch.zeros("nonsense")
    torch.zeros(1)
    assert (sys.getprofile(), seen.operations) == (profiler, {})


@pytest.mark.parametrize("rung", [rung for rung in LESSONS if rung.changes], ids=lambda rung: rung.number)
def test_a_step_has_fewer_of_what_a_lesson_counts_and_launches_its_kernels(rung, small_model):
    """Over five steps, one of them over the end of a block, or each right after forks: what the rung says holds."""
    if rung.kernels and not triton_runs_on(torch.device("cpu")):
        pytest.skip("needs Triton's interpreter")
    sides = {}
    for side, parts in (("before", rung.before), ("after", rung.after)):
        engine, sessions = started(small_model, parts, 5, triton_kv_append_min_batch=B)
        plain = started(small_model, parts, 5, triton_kv_append_min_batch=B)
        sides[side] = (Counter(), Counter())
        for _ in range(5):
            if rung.step_kind == "fork":
                fork_anew(engine, sessions)
                fork_anew(*plain)
            plain[0].take_tokens(plain[1], plain[0].decode_step_sessions(plain[1]))
            counts = count_step(engine, sessions)
            sides[side][0].update(counts.rows())
            sides[side][1].update(counts.launches)
        assert [s.token_ids for s in sessions] == [s.token_ids for s in plain[1]]  # counting changes none
    assert rung.counted or rung.number >= "066"  # a CPU has no graph, no pipeline, no reader, no kernels
    for name in rung.counted:
        assert sides["after"][0][name] < sides["before"][0][name], name
    assert {*sides["after"][1]} >= {*rung.kernels}


def test_inside_a_block_the_second_half_hands_over_less_and_less(small_model):
    """In the second step, when the rows are there: by hand, tables of 10 int32, inputs and slots of B sessions."""
    inputs, table, slots = 2 * B * 8, B * 10 * 4, B * 8
    expected = {"061": L * table + inputs + L * slots, "062": table + inputs + slots}
    expected |= {"063": table + inputs, "064": 0, "065": 0, "066": 0}
    for number, handed in expected.items():
        engine, sessions = started(small_model, lesson(number).after, 5)
        count_step(engine, sessions)
        found = count_step(engine, sessions)
        assert found.device_bytes == handed, number
        assert (found.list_tensors == 0) == (handed == 0)


def test_a_capture_is_no_replay_and_what_a_replay_does_counts_as_one():
    x, graph = torch.zeros(3), CPUGraph()
    with watch() as seen:
        graph.capture(lambda: x.add_(1).mul_(2))
    assert seen.replays == 0
    with watch() as seen:
        graph.replay()
        graph.replay()
        x.t()
        x.add_(1)
    assert (seen.replays, seen.operations_of("add"), seen.operations_of("mul")) == (2, 1, 0)
    assert counts_table({"seen": seen}).loc["replays of a graph"].tolist() == [2]
    assert x.tolist() == [7, 7, 7]
