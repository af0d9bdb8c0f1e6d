"""Launches of kernels are counted as one each, with what they read; a graph holds them; unwritten memory is known."""

import pytest
import torch
import triton
import triton.language as tl

from rosecourse.kernels.launch import Launch
from rosecourse.lab.world.ops_launches import GraphOfLaunches, Launches
from rosecourse.lab.world.ops_log import OpsLog
from rosecourse.lab.world.ops_poison import not_written, poison

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")


@triton.jit
def double(to, x, n, TIMES: tl.constexpr, WIDTH: tl.constexpr):
    """Each program reads all of x, TIMES times, and lanes behind its end read the last number."""
    lanes = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for _ in range(TIMES):
        total += tl.load(x + tl.minimum(lanes, n - 1))
    tl.store(to + lanes, 2 * total / TIMES, mask=lanes < n)


def launched(x, programs=1, times=1):
    to = torch.empty_like(x)
    double[(programs,)](to, x, len(x), TIMES=times, WIDTH=16)
    return to


def test_a_launch_is_one_operation_and_its_own_are_none():
    log, x = OpsLog(), torch.arange(12.0)
    with torch.inference_mode(), log.calling("embed"):
        made = launched(launched(x)) + 1
    assert made.equal(4 * x + 1)
    assert log.operations["embed"] == 3
    with log.calling("logits"):
        Launch(double, (1, 16))((1, 1, 1), made, x, 12)
    assert log.operations["logits"] == 1


@pytest.mark.parametrize(("programs", "times", "large", "read"), [(1, 1, 11, 1), (1, 2, 11, 2), (3, 2, 11, 6)])
def test_what_is_large_is_read_so_many_times(programs, times, large, read):
    launches = Launches(large)
    with launches.counted():
        launched(torch.arange(12.0), programs, times)
        launched(torch.arange(11.0), 9, 9)
    assert launches.times_read == read
    assert launches.number == 2


def test_a_launch_that_fails_is_over():
    launches = Launches()
    with launches.counted():
        with pytest.raises(TypeError):
            double[(1,)]()
        assert not launches.under_way
        launched(torch.arange(2.0))
    assert launches.number == 2


def test_afterwards_launchers_are_as_they_were():
    before = triton.runtime.interpreter.GridExecutor.__call__, triton.JITFunction.run
    with Launches(1).counted():
        assert triton.runtime.interpreter.GridExecutor.__call__ is not before[0]
    assert before == (triton.runtime.interpreter.GridExecutor.__call__, triton.JITFunction.run)


def test_a_graph_replays_kernels_among_operations():
    x, made = torch.arange(4.0), []

    def work():
        made[:] = [launched(x + 1) * 10]

    graph = GraphOfLaunches()
    graph.capture(work)
    for n in range(3):
        x.fill_(n)
        graph.replay()
        assert made[0].tolist() == [20.0 * (n + 1)] * 4


def test_memory_that_nobody_has_written_is_known_and_numbers_are_not_taken_for_it():
    log = OpsLog()
    with log.calling("embed"):
        fresh = torch.empty(2, 3)
        fresh[0] = 7
        whole = torch.zeros(2, 3)
    assert not_written(fresh).tolist() == [[False] * 3, [True] * 3]
    assert not_written(whole / 0).sum() == not_written(whole).sum() == 0
    half = torch.ones(3, dtype=torch.float16)
    poison(half)
    assert half.isnan().all()
    assert not not_written(half).any()
