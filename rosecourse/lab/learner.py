"""The learner's class: built and called like any part of the decode step, its mistakes told in plain words."""

from __future__ import annotations

import inspect
import io
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from ..config import EngineConfig
from ..errors import KVCacheExhausted
from ..kv.blocks import BlockTable, KVBlockInfo, KVBlockManager
from ..models.gpt2 import GPT2
from ..session import InferenceSession
from .verdict import Fault, PartIsWrong

OURS = (KVBlockManager, KVBlockInfo, BlockTable, InferenceSession)  # what a part is given objects of
CALLED_WITH = {"block_tables": ("sessions",), "kv_append": ("sessions", "keys", "values")}
NOT_THEIRS = tuple(
    str(Path(p)) for p in (Path(__file__).parent.parent, *map(sysconfig.get_path, ("stdlib", "purelib")))
)


class Learner:
    """A class that is to be a part of the kind `block_tables` or `kv_append`."""

    def __init__(self, part: type, kind: str) -> None:
        self.part = part
        self.kind = kind
        self.printed = io.StringIO()
        self._ours = {ours: dict(vars(ours)) for ours in OURS}

    def build(self, model: GPT2, kv: KVBlockManager, config: EngineConfig) -> Any:
        """An object of the class, as an engine makes it. Raises `PartIsWrong` if it cannot be made or called."""
        self._takes(self.part, f"{self.part.__name__}.__init__", ("model", "kv", "config"))
        with self._watched():
            made = self.part(model, kv, config)
        if not callable(made):
            raise PartIsWrong(Fault(f"an object of {self.part.__name__} cannot be called: {self._wanted('__call__')}"))
        self._takes(made, f"{self.part.__name__}.__call__", CALLED_WITH[self.kind])
        return made

    def call(self, made: Any, *arguments: Any) -> Any:
        """What the part returns. Raises `PartIsWrong` for what it raises, but for `KVCacheExhausted`."""
        with self._watched():
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
        arguments = ("model", "kv", "config") if method == "__init__" else CALLED_WITH[self.kind]
        return f"define `def {method}({', '.join(('self', *arguments))}):`"

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            with redirect_stdout(self.printed), torch.inference_mode():
                yield
        except KVCacheExhausted:
            raise
        except (Exception, SystemExit) as error:
            raise PartIsWrong(Fault(*raised(error))) from None
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


def raised(error: BaseException) -> tuple[str, tuple[str, ...], str]:
    """An exception as (what, details, reason): the line of the learner's code, none of ours."""
    message = re.sub(r"0x[0-9a-f]+", "0x…", " ".join(str(error).split()))  # an address is another one each time
    what = f"the part raised {type(error).__name__}: {message:.300}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)] or frames[-1:]
    frame = theirs[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip() or "(its text is not to be had)"
    return what, (f"in line {frame.lineno}, in {frame.name}: {line}",), _REASONS.get(type(error).__name__, "")


_REASONS = {
    "BlockError": "the id of a block that was given back, of another layer, or a block index where an id belongs",
    "IndexError": "an empty block list has no last block; a slot must be less than the block size",
    "NotImplementedError": "this is where your code goes",
}
