"""Bookkeeping that an interrupt cannot split: when it is delivered, and what becomes of the handler."""

import signal
import threading
from signal import SIGINT, getsignal, raise_signal

import pytest

from rosecourse.kv import guards as module
from rosecourse.kv.guards import bookkeeping
from tests.support.interrupts import Scene, strike_lines


@pytest.fixture(autouse=True)
def handler():
    """The handler from before the test, which is back when the test has ended."""
    before = getsignal(SIGINT)
    yield before
    signal.signal(SIGINT, before)
    with pytest.raises(KeyboardInterrupt):
        raise_signal(SIGINT)


def comes_out_of(function):
    """The interrupt that comes out of a call, after which the handler is the one from before."""
    before = getsignal(SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        function()
    assert getsignal(SIGINT) == before
    return caught.value


def test_an_interrupt_waits_for_the_end_of_the_outermost_section():
    done = []

    def work():
        with bookkeeping:
            with bookkeeping:
                raise_signal(SIGINT)
                raise_signal(SIGINT)  # both come out as one
            done.append("outer")
            raise ZeroDivisionError

    assert isinstance(comes_out_of(work).__context__, ZeroDivisionError)
    assert done == ["outer"]


def test_an_interruptible_call_is_interrupted_at_once():
    done = []

    def work():
        with bookkeeping:
            raise_signal(SIGINT)
            done.append("a section inside holds it up")
        done.append("never")

    def outer():
        with bookkeeping:
            try:
                bookkeeping.interruptible(work)
            finally:
                raise_signal(SIGINT)
                done.append("protected again")

    comes_out_of(outer)
    assert done == ["a section inside holds it up", "protected again"]


def test_a_handler_that_raises_nothing_is_called_once():
    calls = []
    signal.signal(SIGINT, handler := lambda signum, frame: calls.append(signum))
    with bookkeeping:
        raise_signal(SIGINT)
        assert not calls
        bookkeeping.interruptible(lambda: calls.append("work"))
    assert calls == [SIGINT, "work"]
    assert getsignal(SIGINT) is handler


@pytest.mark.parametrize("other", [signal.SIG_IGN, signal.SIG_DFL, None])
def test_a_handler_that_is_not_pythons_is_left_alone(other, handler, monkeypatch):
    """None: that of another language."""
    known = handler if other is None else other
    signal.signal(SIGINT, known)
    with monkeypatch.context() as patch:
        if other is None:
            patch.setattr(module._signal, "getsignal", lambda _: None)
        with bookkeeping:
            patch.undo()
            assert getsignal(SIGINT) is known
            if other is signal.SIG_IGN:
                raise_signal(SIGINT)
    assert getsignal(SIGINT) is known


def test_other_threads_hold_up_nothing(handler):
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with bookkeeping:
            seen.append(bookkeeping.interruptible(divmod, 7, 2))
            inside.set()
            go_on.wait(60)

    seen, thread = [], threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    assert seen == [(3, 1)]
    assert getsignal(SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        raise_signal(SIGINT)
    with bookkeeping:  # the main thread's own
        go_on.set()
        thread.join()
        assert getsignal(SIGINT) != handler


def test_an_interrupt_at_any_line_of_the_mechanism_itself():
    """`strike_lines` sees to it that it comes out, once, and that the handler is back."""

    def scene():
        done = []

        def call():
            with bookkeeping:
                done.append("begin")
                done.append("end")

        def check(interrupted, _):
            assert interrupted or done
            assert done in ([], ["begin", "end"])

        return Scene(call, check)

    assert strike_lines(scene) > 10
