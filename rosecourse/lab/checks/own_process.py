"""A process of its own for work with a learner's code, which may hang, crash, end the process or patch what it likes.

The process is a fork where that is possible: it has the notebook's classes, closures and globals as they are. CUDA does
not survive a fork; where the work needs it, or the system has no fork, an interpreter that is started for it gets the
work by value (`by_value`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from ...checks import words
from .by_value import dumps

SILENCE = 10.0  # seconds in which a process must let hear of itself: more than any call takes
STARVED = 4  # times as long for one that gets little of the processor, for others keep it busy
START = 50.0  # the same until it is heard for the first time, where an interpreter and CUDA have to start
WORKER = "import sys; sys.path[:] = {path!r}; from rosecourse.lab.checks.own_process import serve; serve()"
LEAVE = "_exit"  # of `os`: the end of a process without a word

Report = Callable[..., None]  # called with what the caller is to hear, it also says that the work goes on
Work = Callable[[Report], Any]


class CannotBeSent(Exception):
    """The work holds something that another interpreter cannot get by value."""


@dataclass(frozen=True)
class Ended:
    """How a process ended that gave no result.

    signal: the number of the signal that ended it, 0 for none; code: its exit code. silent: seconds without a word,
    after which it was ended; 0 where it ended by itself. trace: the frames of its main thread at the end, as
    `faulthandler` writes them, the innermost first.
    """

    signal: int = 0
    code: int = 0
    silent: float = 0.0
    trace: str = ""


def run_apart(work: Work, hear: Callable[..., object], fork: bool = True, silence: float = SILENCE) -> Any:
    """What `work` returns in a process of its own, or how that ended; whatever it reports is passed on to `hear`.

    fork: whether the process may be a fork of this one. silence: seconds after which it is ended. Whatever `work`
    raises is raised here. An interrupt ends the process and is raised. Raises `CannotBeSent` for work that another
    interpreter cannot get.
    """
    forked = fork and hasattr(os, "fork")
    with contextlib.ExitStack() as at_end:
        with _late_interrupt():
            child = _forked(work) if forked else _sent(work)
            at_end.callback(child.trace.close)
            at_end.callback(child.end)
        return _listen(child, hear, silence if forked else START, silence)


@contextlib.contextmanager
def _late_interrupt() -> Iterator[None]:
    """An interrupt that comes in the block is raised at its end.

    A fork of a large process takes a while. Python handles what came meanwhile in the hooks that it runs afterwards,
    and whatever a hook raises is lost.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if came:
        signal.raise_signal(signal.SIGINT)


# -- this side --------------------------------------------------------------------------------------------------------


class Child:
    """The other process: what it says comes out of `said`, and None at its end."""

    def __init__(self, pid: int, reads: IO[bytes], trace: IO[bytes], wait: Callable[[], int]) -> None:
        """wait: waits for the end of the process, and returns its exit code, or the negative number of a signal."""
        self.pid, self.trace, self._wait = pid, trace, wait
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ended: int | None = None
        self._reader = threading.Thread(target=self._read, args=(reads,), daemon=True)
        self._reader.start()

    def _read(self, reads: IO[bytes]) -> None:
        with reads, contextlib.suppress(Exception):  # a process that is ended may have said half a word
            while True:
                self.said.put(pickle.load(reads))
        self.said.put(None)

    def next(self, limit: float) -> Any:
        """What it says next. Raises `queue.Empty` after so many seconds of silence, of work or of waiting.

        A process that others keep from working gets more time, as far as the system tells how much it has worked.
        """
        worked, end = _cpu_seconds(self.pid), time.monotonic() + STARVED * limit
        while True:
            try:
                return self.said.get(timeout=limit)
            except queue.Empty:
                before, worked = worked, _cpu_seconds(self.pid)
                starved = 0.05 * limit < worked - before < 0.5 * limit
                if not starved or time.monotonic() > end:
                    raise

    def dump(self) -> None:
        """Ask the process where it stands; it answers even in the middle of a call into a library."""
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.3)

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self._ended is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            self.exit_code()

    def exit_code(self) -> int:
        """That of a process that has closed its end, or the negative number of the signal that ended it."""
        if self._ended is None:
            self._ended = self._wait()
        return self._ended

    def traced(self) -> str:
        self.trace.seek(0)
        return self.trace.read().decode(errors="replace")


def _cpu_seconds(pid: int) -> float:
    """How long a process has worked so far; 0 where the system does not tell it in Linux's way."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in its own code, and in the system's
    except (OSError, ValueError, IndexError):
        return 0.0


def _listen(child: Child, hear: Callable[..., object], first: float, silence: float) -> Any:
    """first: seconds in which the process must be heard for the first time; silence: the same after that."""
    limit = first
    while True:
        try:
            said = child.next(limit)
        except queue.Empty:
            child.dump()
            child.end()
            return Ended(silent=limit, trace=child.traced())
        limit = silence
        if said is None:
            code = child.exit_code()
            return Ended(signal=max(0, -code), code=max(0, code), trace=child.traced())
        kind, what = said
        if kind == "result":
            return what
        if kind == "raised":
            raise what
        hear(*what)


def _forked(work: Work) -> Child:
    reads, writes = os.pipe()
    trace = tempfile.TemporaryFile()  # noqa: SIM115 (both processes keep it open)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: none of them runs in the child
        pid = os.fork()
    if pid == 0:
        os.close(reads)
        torch.set_num_threads(1)  # a pool of threads does not survive a fork
        gc.freeze()  # of what is inherited nothing is searched for garbage again: that would copy its memory
        _do(work, os.fdopen(writes, "wb"), trace)
    os.close(writes)
    return Child(pid, os.fdopen(reads, "rb"), trace, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


# -- the other side ---------------------------------------------------------------------------------------------------


def _do(work: Work, writes: IO[bytes], trace: IO[bytes]) -> NoReturn:
    """Do the work, say what comes of it, and end."""
    leave: Callable[[int], NoReturn] = getattr(os, LEAVE)
    code = 1

    def leave_with_a_trace(code: int) -> None:
        faulthandler.dump_traceback(trace, all_threads=False)
        leave(code)

    try:
        _make_quiet()
        setattr(os, LEAVE, leave_with_a_trace)
        faulthandler.enable(trace, all_threads=False)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, trace, all_threads=False)
        lock = threading.Lock()

        def say(kind: str, what: Any) -> None:
            message = pickle.dumps((kind, what))
            with lock:
                writes.write(message)
                writes.flush()

        try:
            say("result", work(lambda *what: say("heard", what)))
        except Exception as error:
            say("raised", error)
        code = 0
    finally:
        leave(code)


def _make_quiet() -> None:
    """What is printed here is nobody's; an interrupt is for the process that waits."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), io.StringIO(), io.StringIO()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that Ctrl-C on a terminal does not reach it


# -- an interpreter of its own ----------------------------------------------------------------------------------------


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER.format(path=[os.path.abspath(path) for path in sys.path])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _sent(work: Work) -> Child:
    trace = tempfile.NamedTemporaryFile()  # noqa: SIM115 (both processes keep it open)
    try:
        message = dumps((trace.name, work))
    except Exception as error:  # of any object that it reaches
        trace.close()
        raise CannotBeSent(words(error)) from error
    process = _start()
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as to:
        to.write(message)
    return Child(process.pid, process.stdout, trace, process.wait)


def serve() -> NoReturn:
    """Wait for work on the standard input, do it, and end."""
    name, work = pickle.load(sys.stdin.buffer)
    writes = os.fdopen(os.dup(1), "wb")
    torch.set_num_threads(1)
    _do(work, writes, open(name, "r+b"))  # noqa: SIM115 (open until the end)
