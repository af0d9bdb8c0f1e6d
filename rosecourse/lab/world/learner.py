"""The learner's class: built and called like any part of the decode step, its mistakes told in plain words."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from ...config import EngineConfig
from ...errors import KVCacheExhausted
from ...models.shape import Model
from .causes import Cause
from .error_reading import Given, place, raised
from .fault import Fault, PartIsWrong
from .kernel_memory import outside_memory

BUILT_WITH = ("model", "kv", "config")
BUILT = "__init__"  # for a part that is built with others: their names stand beside those of its methods
Names = tuple[str, ...]  # of arguments
CalledWith = Names | Mapping[str, Names]  # a mapping: for each method that a step calls


def methods_of(called_with: CalledWith) -> Mapping[str, Names]:
    """The methods that a step calls, with the names of their arguments."""
    named = called_with if isinstance(called_with, Mapping) else {"__call__": called_with}
    return {method: names for method, names in named.items() if method != BUILT}


def built_with(called_with: CalledWith) -> Names:
    """The names of what a part is built with."""
    return called_with.get(BUILT, BUILT_WITH) if isinstance(called_with, Mapping) else BUILT_WITH


class Printed(io.StringIO):
    """What a part has printed. It stays open: the part cannot close it for those who come after."""

    def close(self) -> None:
        """Do nothing."""


class Learner:
    """A class that is to be a part of the decode step.

    called_with: the arguments that a step calls the part with; where it calls methods of the part, those of each
    method. alive: is called before each call of the part.
    """

    def __init__(self, part: type, called_with: CalledWith, alive: Callable[[], object] = lambda: None) -> None:
        self.part, self.called_with, self.alive = part, called_with, alive
        self.methods = methods_of(called_with)
        self.printed = Printed()
        self.built_with: dict[str, Any] = {}  # what the object made last was built with, by name

    def build(self, *given: Any) -> Any:
        """An object of the class, as an engine makes it. Raises `PartIsWrong` if it cannot be made or called.

        given: what a part of this kind is built with; of most that is the model, its cache and the config.
        """
        names = built_with(self.called_with)
        self._takes(self.part, BUILT, names)
        self.built_with = dict(zip(names, given, strict=True))
        with self._watched({}):
            made = self.part(*given)
        for method, arguments in self.methods.items():
            self._takes(self._method_of(made, method), method, arguments)
        return made

    def _method_of(self, made: Any, method: str) -> Callable[..., Any]:
        """A method that a step calls. Raises `PartIsWrong` where there is none."""
        found = made if method == "__call__" else getattr(made, method, None)
        if not callable(found):
            lacks = "cannot be called" if method == "__call__" else f"has no method `{method}`"
            what = f"an object of {self.part.__name__} {lacks}: {_wanted(method, self.methods[method])}"
            raise PartIsWrong(Fault(what, cause=Cause.INTERFACE))
        return found

    def call(self, made: Any, *arguments: Any, names: Names = ()) -> Any:
        """What the part returns. Raises `PartIsWrong` for what it raises, but for `KVCacheExhausted`.

        names: of the arguments, for a method of the part, or for a function that it has returned.
        """
        names = names or self.methods.get("__call__", ())
        with self._watched(dict(zip(names, arguments, strict=False))):
            return made(*arguments)

    def call_method(self, made: Any, method: str, *arguments: Any) -> Any:
        """What a method of the part returns; as `call`."""
        return self.call(self._method_of(made, method), *arguments, names=self.methods[method])

    def remarks(self) -> tuple[str, ...]:
        """What it printed, which is not shown while it is checked."""
        lines = self.printed.getvalue().splitlines()
        return (f"the part prints; {len(lines)} lines were held back, the first: {lines[0]:.60}",) if lines else ()

    def _takes(self, called: Any, method: str, arguments: Names) -> None:
        try:
            inspect.signature(called).bind(*arguments)
        except TypeError as error:
            what = f"{self.part.__name__}.{method} cannot be called: {error}; {_wanted(method, arguments)}"
            raise PartIsWrong(Fault(what, cause=Cause.INTERFACE)) from None
        except ValueError:  # a class without a signature, such as one made in C: calling it will tell
            return

    @contextmanager
    def _watched(self, arguments: dict[str, Any]) -> Iterator[None]:
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
                reason = "look at the grid, at the mask, and at the offsets: rows may have strides of their own"
                raise PartIsWrong(
                    Fault(f"the kernel: {outside}", place(outside)[1:], reason, cause=Cause.OUTSIDE)
                ) from None
            raise PartIsWrong(raised(error, Given(self.built_with, arguments))) from None
        except BaseException as error:  # an interrupt goes to the process that waits: this one is the part's own
            raise PartIsWrong(raised(error, Given(self.built_with, arguments))) from None


def _wanted(method: str, arguments: Names) -> str:
    return f"define `def {method}({', '.join(('self', *arguments))}):`"


def in_an_engine(learner: Learner) -> type:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""

    class Guarded:
        def __init__(self, model: Model, kv: Any, config: EngineConfig) -> None:
            self.made = learner.build(model, kv, config)

        def __call__(self, *arguments: object) -> object:
            return learner.call(self.made, *arguments)

    return Guarded
