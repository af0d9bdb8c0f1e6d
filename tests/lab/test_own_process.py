"""A learner's code in a process of its own: whatever it does, the caller gets an answer."""

import os
import signal
import threading
import time

import pytest
import torch

from rosecourse.lab.checks.by_value import dumps
from rosecourse.lab.checks.own_process import Ended, run_apart
from rosecourse.lab.world.error_reading import place_in_trace

FACTOR = 3
both = pytest.mark.parametrize("fork", [True, False], ids=["fork", "another interpreter"])


def nobody(*said):
    """Hears nothing."""


def three_times(number):
    return FACTOR * number


@both
def test_the_work_has_the_globals_and_closures_of_its_caller_and_reports(fork):
    heard, more = [], [1, 2]

    def work(report):
        for number in more:
            report("done", number)
        return three_times(torch.tensor(more)).tolist(), os.getpid()

    found, pid = run_apart(work, lambda *said: heard.append(said), fork)
    assert found == [3, 6]
    assert pid != os.getpid()
    assert heard == [("done", 1), ("done", 2)]


@both
def test_what_the_work_raises_is_raised_here(fork):
    def work(report):
        raise ValueError("no such block")

    with pytest.raises(ValueError, match="no such block"):
        run_apart(work, nobody, fork)


def test_nothing_that_the_work_changes_or_prints_comes_back(capfd):
    kept = [1]

    def work(report):
        kept.append(2)
        torch.tensor = None
        print("here")
        os.write(1, b"and here")
        return list(kept)

    before = torch.tensor
    assert run_apart(work, nobody) == [1, 2]
    assert kept == [1]
    assert torch.tensor is before
    assert capfd.readouterr() == ("", "")


@pytest.mark.grid
@both
def test_a_process_that_is_silent_is_ended_and_says_where_it_stood(fork):
    def work(report):
        report("begun")
        threading.Event().wait()  # never comes

    start = time.monotonic()
    ended = run_apart(work, nobody, fork, silence=0.5)
    assert isinstance(ended, Ended)
    assert ended.silent == 0.5
    assert time.monotonic() - start < 45
    assert "threading.Event().wait()  # never comes" in "".join(place_in_trace(ended.trace))


@pytest.mark.parametrize(
    ("last", "code", "number"),
    [
        (lambda: os._exit(0), 0, 0),
        (lambda: os._exit(7), 7, 0),
        (lambda: os.abort(), 0, signal.SIGABRT),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), 0, signal.SIGSEGV),
    ],
)
def test_how_a_process_ends_that_gives_no_result(last, code, number):
    def work(report):
        last()

    ended = run_apart(work, nobody)
    assert (ended.code, ended.signal, ended.silent) == (code, number, 0)
    assert "in work" in "".join(place_in_trace(ended.trace)) or "in <lambda>" in "".join(place_in_trace(ended.trace))


def test_an_interrupt_ends_the_process():
    pids = []

    def work(report):
        report("pid", os.getpid())
        time.sleep(60)

    def hear(what, pid):
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_apart(work, hear)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_interrupt_that_comes_during_the_fork_is_raised_after_it():
    coming = [signal.SIGINT]
    os.register_at_fork(after_in_parent=lambda: coming and signal.raise_signal(coming.pop()))
    former = signal.getsignal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_apart(lambda report: time.sleep(60), nobody)
    assert signal.getsignal(signal.SIGINT) is former


def test_threads_of_the_caller_do_not_hold_up_a_fork():
    """A fork has none of the threads of the pool, which has been at work before it."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        large = torch.rand(500, 500)
        torch.mm(large, large)
        assert run_apart(lambda report: torch.mm(large, large).shape[0], nobody) == 500
    finally:
        torch.set_num_threads(before)


def test_what_goes_by_value_says_where_it_is_from():
    """The lines of this file are there on the other side, where no such module is."""
    assert b"def three_times(number):" in dumps(three_times)


def hardly_at_work(seconds):
    """As if others had the processor for most of the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        time.sleep(0.08)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the system does not tell how much a process works")
def test_a_process_that_others_keep_from_working_gets_more_time_and_not_for_ever():
    def work(report):
        hardly_at_work(2.0)
        return "done"

    assert run_apart(work, nobody, silence=0.8) == "done"
    begin = time.monotonic()
    ended = run_apart(lambda report: hardly_at_work(100.0), nobody, silence=0.8)
    assert isinstance(ended, Ended)
    assert ended.silent == 0.8
    assert time.monotonic() - begin < 50
