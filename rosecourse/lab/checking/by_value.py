"""Classes and kernels of a notebook by value, for another interpreter that has never seen the notebook.

`cloudpickle` takes classes, closures and the globals that they use. A kernel of Triton is decorated once more on the
other side, and every file in which a function stands comes along, so that its lines can be shown there.
"""

import io
import linecache
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from ...kernels import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    import triton

INSTALLED = (str(Path(__file__).parents[2]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
DECORATED_WITH = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


def dumps(what: Any) -> bytes:
    """An object as bytes that `pickle.loads` reads in an interpreter with the same packages."""
    with _local_modules_by_value(), io.BytesIO() as out:
        pickler = _Pickler(out)
        pickler.dump(what)
        files = {name: linecache.getlines(name) for name in pickler.files}
        return pickle.dumps(_Whole(files, out.getvalue()))


def copies_of(what: Any) -> Callable[[], Any] | None:
    """What returns a copy whenever it is called, with classes, functions and globals as they are now; None if there can
    be no copies, as of a lock, a running engine or a structure of ctypes."""
    try:
        whole = dumps(what)
        pickle.loads(whole)
    except Exception:  # of any object that it reaches
        return None
    return partial(pickle.loads, whole)


class _Whole:
    """A pickle and the files that its functions come from, which are put in place before it is read."""

    def __init__(self, files: dict[str, list[str]], inner: bytes) -> None:
        self.files, self.inner = files, inner

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _read, (self.files, self.inner)


def _read(files: dict[str, list[str]], inner: bytes) -> Any:
    for name, lines in files.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return pickle.loads(inner)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.files: set[str] = set()  # of the functions that have been pickled by value

    def reducer_override(self, obj: Any) -> Any:
        if TRITON_AVAILABLE and isinstance(obj, triton.runtime.JITFunction):
            return _decorated, (obj.fn, {name: getattr(obj, name) for name in DECORATED_WITH if hasattr(obj, name)})
        if isinstance(obj, FunctionType):
            self.files.add(obj.__code__.co_filename)
        elif isinstance(obj, CodeType):
            self.files.add(obj.co_filename)
        return super().reducer_override(obj)


def _decorated(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return triton.jit(function, **options)


@contextmanager
def _local_modules_by_value() -> Iterator[None]:
    """Modules that another interpreter could not import, such as a learner's file, go by value."""
    local = [module for module in list(sys.modules.values()) if _is_local(module)]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


def _is_local(module: Any) -> bool:
    name, file = getattr(module, "__name__", "__main__"), getattr(module, "__file__", None)
    is_module = isinstance(module, ModuleType) and name != "__main__" and sys.modules.get(name) is module
    return is_module and isinstance(file, str) and file.endswith(".py") and not file.startswith(INSTALLED)
