"""What the tests of SchedulerManager share: threads, gates that hold a thread where it hurts, and time limits."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rosecourse import SamplingParams, SchedulerManager

LIMIT = 60  # seconds that nothing here comes near, unless it hangs
LONG = SamplingParams(max_new_tokens=80, stop_on_eos=False)


def params(new):
    return SamplingParams(max_new_tokens=new, stop_on_eos=False)


def ids(stream):
    return [token.token_id for token in stream]


def in_threads(*targets):
    """Call each in a thread of its own, wait for all, and raise what one has raised."""
    with ThreadPoolExecutor(len(targets)) as pool:
        for future in [pool.submit(target) for target in targets]:
            future.result(LIMIT)


class Gate:
    """Holds whoever comes to the n-th call of a function, from when it `has_come` until `open`."""

    def __init__(self, owner, name, n=1):
        self._real, self._n, self._calls = getattr(owner, name), n, 0
        self._came, self._opened = threading.Event(), threading.Event()
        setattr(owner, name, self)

    def __getattr__(self, name):
        return getattr(self._real, name)

    def __call__(self, *args, **kwargs):
        self._calls += 1
        if self._calls == self._n:
            self._came.set()
            assert self._opened.wait(LIMIT)
        return self._real(*args, **kwargs)

    def has_come(self):
        assert self._came.wait(LIMIT)

    def open(self):
        self._opened.set()


@contextmanager
def time_limit():
    """A test that hangs in the main thread fails, and its clean-up fails if that hangs too."""

    def stop(*_):
        raise TimeoutError(f"it hangs: {LIMIT} seconds")

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # pytest-timeout's, which goes on


@contextmanager
def managers(scheduler):
    """Makes managers; in the end they are closed, no thread is left, and every block is free."""
    before = set(threading.enumerate())
    made = []

    def make(**settings):
        made.append(SchedulerManager(scheduler, **settings))
        return made[-1]

    with time_limit():
        try:
            yield make
        finally:
            for manager in made:
                manager.close()
    assert set(threading.enumerate()) <= before
    assert not scheduler.has_work
    scheduler.audit()
    assert scheduler.engine.kv.num_available() == scheduler.engine.kv.num_blocks
