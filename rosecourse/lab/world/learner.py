"""The learner's class: built and called like any part of the decode step, its mistakes told in plain words."""

from __future__ import annotations

import inspect
import io
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import CodeType, FrameType
from typing import Any

import torch

from ...config import EngineConfig
from ...errors import KVCacheExhausted
from ...kv.blocks import BlockTable, KVBlockInfo, KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession
from .error_reading import NOT_THEIRS, place, raised
from .fault import Fault, PartIsWrong

OURS = (KVBlockManager, KVBlockInfo, BlockTable, InferenceSession)  # what a part is given objects of
BUILT_WITH = ("model", "kv", "config")
LIMIT = 20.0  # seconds for a call: more than any takes, the first launch of a kernel included


class TookTooLongError(BaseException):
    """Ends a call of the part; no `except Exception` of its own holds it back."""


class Learner:
    """A class that is to be a part of the decode step. called_with: the arguments that a step calls the part with."""

    def __init__(self, part: type, called_with: tuple[str, ...]) -> None:
        self.part = part
        self.called_with = called_with
        self.printed = io.StringIO()
        self.kv: KVBlockManager | None = None  # that of the object made last
        self._ours = {ours: dict(vars(ours)) for ours in OURS}

    def build(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> Any:
        """An object of the class, as an engine makes it. Raises `PartIsWrong` if it cannot be made or called."""
        self.kv = kv
        self._takes(self.part, f"{self.part.__name__}.__init__", BUILT_WITH)
        with self._watched():
            made = self.part(model, kv, config)
        if not callable(made):
            raise PartIsWrong(Fault(f"an object of {self.part.__name__} cannot be called: {self._wanted('__call__')}"))
        self._takes(made, f"{self.part.__name__}.__call__", self.called_with)
        return made

    def call(self, made: Any, *arguments: Any) -> Any:
        """What the part returns. Raises `PartIsWrong` for what it raises, but for `KVCacheExhausted`."""
        named = dict(zip(self.called_with, arguments, strict=False))
        with self._watched(named.get("sessions", ())):
            return made(*arguments)

    def remarks(self) -> tuple[str, ...]:
        """What it printed, which is not shown while it is checked."""
        lines = self.printed.getvalue().splitlines()
        return (f"the part prints; {len(lines)} lines were held back, the first: {lines[0]:.60}",) if lines else ()

    def _takes(self, called: Any, name: str, arguments: tuple[str, ...]) -> None:
        try:
            inspect.signature(called).bind(*arguments)
        except TypeError as error:
            method = name.rpartition(".")[2]
            raise PartIsWrong(Fault(f"{name} cannot be called: {error}; {self._wanted(method)}")) from None
        except ValueError:  # a class without a signature, such as one made in C: calling it will tell
            return

    def _wanted(self, method: str) -> str:
        arguments = BUILT_WITH if method == "__init__" else self.called_with
        return f"define `def {method}({', '.join(('self', *arguments))}):`"

    @contextmanager
    def _watched(self, sessions: Sequence[InferenceSession] = ()) -> Iterator[None]:
        try:
            with redirect_stdout(self.printed), torch.inference_mode(), limited(LIMIT):
                yield
        except KVCacheExhausted:
            raise
        except TookTooLongError as error:
            what, reason = f"the part was still at work after {LIMIT:g} seconds", "a loop that does not end"
            raise PartIsWrong(Fault(what, place(error)[1:], reason, ends=True)) from None
        except (Exception, SystemExit) as error:
            raise PartIsWrong(Fault(*raised(error, self.kv, sessions))) from None
        finally:
            self._put_back()

    def _put_back(self) -> None:
        """Undo what the part has put over the methods of our classes, and say so."""
        replaced = []
        for ours, names in self._ours.items():
            for name in names:
                if vars(ours).get(name) is not names[name]:
                    replaced.append(f"{ours.__name__}.{name}")
                    setattr(ours, name, names[name])
        if replaced:
            reason = "other parts use it too: write the new way into the part itself"
            raise PartIsWrong(Fault(f"the part replaced {replaced[0]}", reason=reason))


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TookTooLongError` from the first line of the learner's code that runs after so many seconds.

    One call into a library that does not return cannot be ended so. Where a debugger traces, there is no limit.
    """
    if sys.gettrace() is not None:
        yield
        return
    end = time.monotonic() + seconds
    theirs: dict[CodeType, bool] = {}

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in theirs:
            theirs[code] = not code.co_filename.startswith(NOT_THEIRS)
        return on_line if theirs[code] else None

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        if time.monotonic() > end:
            raise TookTooLongError
        return on_line

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(None)
