"""Work in a process of its own: a part may crash, hang or end the process, and nothing of it stays.

The process is a fork where that is possible: it has the notebook's classes, closures and globals as they are. CUDA does
not survive a fork; where it is used, or the system has no fork, an interpreter is started and gets the work by value.
"""

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from .by_value import dumps

WORKER = "import sys; sys.path[:] = {path!r}; from rosecourse.lab.checking.apart import serve; serve()"
TRACE, NOTE = "trace", "note"  # files in which another process says how it ends, and what it works at
LEAVE = "_exit"  # of `os`: the end of a process without a word
WORK_LIMIT, WAIT_LIMIT = 4.0, 10.0  # seconds of work, and on the clock, after which a process ends at a step
TO_LEAVE = 0.2  # seconds that a process has to write its trace
STDOUT, STDERR = 1, 2
LIMITS = (signal.SIGALRM, signal.SIGPROF)


class StepLimit:
    """A step of a process of its own has so many seconds; elsewhere the timer is somebody else's, such as pytest's."""

    is_apart = False

    def begin(self) -> None:
        self._set(WORK_LIMIT, WAIT_LIMIT)

    def end(self) -> None:
        self._set(0.0, 0.0)

    def _set(self, work: float, wait: float) -> None:
        if self.is_apart:
            signal.setitimer(signal.ITIMER_PROF, work)
            signal.setitimer(signal.ITIMER_REAL, wait)


STEP = StepLimit()

Note = Callable[[Any], None]  # keeps what is being worked at, for the case that the process ends
Work = Callable[[Note], Any]


@dataclass(frozen=True)
class Ended:
    """How a process ended that gave no answer. noted: what it was working at. trace: as `faulthandler` writes it.

    code: its exit code, or the negative number of the signal that ended it.
    """

    code: int
    noted: Any
    trace: str

    @property
    def hung(self) -> bool:
        return self.code in (-signal.SIGALRM, -signal.SIGPROF, -signal.SIGKILL)


def _ended(folder: Path, code: int) -> Ended:
    trace, note = folder / TRACE, folder / NOTE
    noted = pickle.loads(note.read_bytes()) if note.exists() else None
    return Ended(code, noted, trace.read_text(errors="replace") if trace.exists() else "")


def run_apart(work: Work, fork: bool, seconds: float) -> Any:
    """What `work` returns in a process of its own, or an `Ended`; whatever it raises is raised here.

    fork: whether the process may be a fork of this one. seconds: after which it is ended. Raises as `dumps` for work
    that another interpreter cannot get.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, reads = _fork(work, folder) if fork and hasattr(os, "fork") else _send(work, folder)
        try:
            answer, late = _read_until(reads, time.monotonic() + seconds)
            if late:
                os.kill(process, signal.SIGALRM)  # it leaves a trace
                time.sleep(TO_LEAVE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)  # nothing, where it has ended by itself
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if late or not answer:
            return _ended(folder, code)
    kind, what = pickle.loads(answer)
    if kind == "raised":
        raise what
    return what


def _read_until(reads: IO[bytes], end: float) -> tuple[bytes, bool]:
    """All that the other process says before it ends, and whether it is late: not done by `end`."""
    said = b""
    with reads:
        while select.select([reads], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = os.read(reads.fileno(), 1 << 16)
            if not piece:
                return said, False
            said += piece
    return said, True


def _fork(work: Work, folder: Path) -> tuple[int, IO[bytes]]:
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: none of them runs in the child
        process = os.fork()
    if process == 0:
        os.close(reads)
        gc.freeze()  # of what is inherited nothing is searched for garbage again: that would copy its memory
        _do(work, os.fdopen(writes, "wb"), folder)
    os.close(writes)
    return process, os.fdopen(reads, "rb")


def _send(work: Work, folder: Path) -> tuple[int, IO[bytes]]:
    command = [sys.executable, "-c", WORKER.format(path=[os.path.abspath(path) for path in sys.path])]
    message = dumps((work, folder))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as to:
        to.write(message)
    return process.pid, process.stdout


def serve() -> NoReturn:
    work, folder = pickle.load(sys.stdin.buffer)
    _do(work, os.fdopen(os.dup(STDOUT), "wb"), folder)


def _do(work: Work, writes: IO[bytes], folder: Path) -> NoReturn:
    leave: Callable[[int], NoReturn] = getattr(os, LEAVE)

    def leave_with_a_trace(code: int) -> None:
        faulthandler.dump_traceback(STDERR, all_threads=False)
        leave(code)

    code = 1
    try:
        torch.set_num_threads(1)  # a pool of threads does not survive a fork
        _redirect(folder / TRACE)
        setattr(os, LEAVE, leave_with_a_trace)
        try:
            answer = "result", work(lambda what: _keep(folder / NOTE, what))
        except Exception as error:
            answer = "raised", error
        with writes:
            writes.write(pickle.dumps(answer))
        code = 0
    finally:
        leave(code)


def _redirect(trace: Path) -> None:
    """What is printed goes nowhere, traces of crashes into a file; an interrupt is for the process that waits."""
    nowhere, file = os.open(os.devnull, os.O_RDWR), os.open(trace, os.O_CREAT | os.O_RDWR)
    for stream, target in ((0, nowhere), (STDOUT, nowhere), (STDERR, file)):
        os.dup2(target, stream)
    faulthandler.enable(STDERR, all_threads=False)
    for limit in LIMITS:
        signal.signal(limit, signal.SIG_DFL)
        faulthandler.register(limit, STDERR, all_threads=False, chain=True)  # a trace, and then the end
    STEP.is_apart = True
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that Ctrl-C on a terminal does not reach it


def _keep(file: Path, what: Any) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(pickle.dumps(what))
    new.replace(file)  # at once: the process may end at any moment
