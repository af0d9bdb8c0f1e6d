"""Streams that nobody holds any more: garbage collections at nasty moments, and the end of the interpreter."""

import gc
import subprocess
import sys
import threading
import types
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest

from rosecourse.engine import stepper
from tests.support.managers import LONG, ids, params


class CollectsGarbage(threading.Condition):
    """Whoever gets this lock collects garbage at once, and with it a stream that is in a cycle."""

    litter: SimpleQueue = SimpleQueue()

    def __enter__(self):
        entered = super().__enter__()
        with suppress(Empty):
            cycle = [self.litter.get_nowait()]
            cycle.append(cycle)
            del cycle
            gc.collect(0)
        return entered


def test_a_garbage_collection_under_the_lock_may_cancel(manage, monkeypatch):
    """A stream's end calls cancel, in whatever thread it happens to end: here in one that holds the lock already."""
    patched = {"Condition": CollectsGarbage, "Thread": threading.Thread, "current_thread": threading.current_thread}
    monkeypatch.setattr(stepper, "threading", types.SimpleNamespace(**patched))
    manager = manage()
    sessions = []
    for n in range(12):
        stream = manager.submit([1, 2, n], LONG)
        sessions.append(stream.session)
        CollectsGarbage.litter.put(stream)
        del stream
        assert len(ids(manager.submit([3, n], params(2)))) == 2
    manager.close(drain=True)
    assert CollectsGarbage.litter.empty()
    assert [session.finish_reason for session in sessions] == ["cancelled"] * 12


READS = (
    "import threading, rosecourse as rc; e = rc.InferenceEngine(rc.load_model(device='cpu'))\n"
    "m = rc.SchedulerManager(rc.OnlineScheduler(e))\n"
    "p = lambda n: rc.SamplingParams(max_new_tokens=n, stop_on_eos=False)\n"
    "s = m.submit('Hello', p(400)); s.me = s; next(s); r = m.submit('It', p(40))\n"
    "threading.Thread(target=lambda: print(len(list(r)))).start()"
)
HOLDS = (
    "import rosecourse as rc; model = rc.load_model(device='cpu')\n"
    "def start():\n"
    "    m = rc.SchedulerManager(rc.OnlineScheduler(rc.InferenceEngine(model)))\n"
    "    s = m.submit('Hello', rc.SamplingParams(max_new_tokens=400, stop_on_eos=False)); next(s)\n"
    "    return m, s\n"
    "both = start(); stream = start()[1]; manager = start()[0]; start(); m, s = start(); m.me = m; del m, s"
)


@pytest.mark.parametrize(("code", "printed"), [(READS, "40\n"), (HOLDS, "")], ids=["reads", "holds"])
def test_a_program_may_end_whatever_it_holds(code, printed):
    """With requests that run; a reader that is no daemon gets its last token before the interpreter goes."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
