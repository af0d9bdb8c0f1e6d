"""The learner's class: built and called like any part of the decode step, its mistakes told in plain words."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from ...config import EngineConfig
from ...errors import KVCacheExhausted
from ...kv.blocks import KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession
from .error_reading import place, raised
from .fault import Fault, PartIsWrong
from .kernel_memory import outside_memory
from .patches import look_for_patches

BUILT_WITH = ("model", "kv", "config")


class Learner:
    """A class that is to be a part of the decode step.

    called_with: the arguments that a step calls the part with. alive: is called before each call of the part.
    """

    def __init__(self, part: type, called_with: tuple[str, ...], alive: Callable[[], object] = lambda: None) -> None:
        self.part, self.called_with, self.alive = part, called_with, alive
        self.printed = io.StringIO()
        self.kv: KVBlockManager | None = None  # that of the object made last

    def build(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> Any:
        """An object of the class, as an engine makes it. Raises `PartIsWrong` if it cannot be made or called."""
        self.kv = kv
        self._takes(self.part, f"{self.part.__name__}.__init__", BUILT_WITH)
        with self._watched():
            made = self.part(model, kv, config)
        look_for_patches()
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
        """Around a call: `alive` says that one begins, and whatever comes out of it is told in plain words."""
        self.alive()
        try:
            with redirect_stdout(self.printed), torch.inference_mode():
                yield
        except KVCacheExhausted:
            raise
        except Exception as error:
            outside = outside_memory(error)
            if outside is not None:
                reason = "look at the grid, at the mask, and at the offsets: rows of K and V have strides of their own"
                raise PartIsWrong(Fault(f"the kernel: {outside}", place(outside)[1:], reason)) from None
            raise PartIsWrong(Fault(*raised(error, self.kv, sessions))) from None
        except BaseException as error:  # an interrupt goes to the process that waits: this one is the part's own
            raise PartIsWrong(Fault(*raised(error, self.kv, sessions))) from None
