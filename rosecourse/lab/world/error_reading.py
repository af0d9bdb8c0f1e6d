"""An exception that a part raised, in plain words: the learner's line, and what it is likely to come from.

A guess is made only where it fits what the part was given: the sessions, the pool, the sizes in torch's message.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...checks import words
from ...decode.inputs import DecodeInputs
from ...pictures.sheet import counted
from ...request.session import InferenceSession
from .causes import Cause
from .fault import Fault
from .layout import ONE_TABLE, layout_of

NOT_THEIRS = (
    str(Path(__file__).parents[2]),
    *(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib")),
)

FULL = "the block is full"
MOST = 16  # lengths that are told
NO_DRIVER = (
    "the kernels. Triton has no driver in this process: it was imported before TRITON_INTERPRET=1 was set, or before "
    "the GPU could be seen. Restart the kernel and run from the top"
)


class CannotTry(Exception):
    """What cannot be tried here, and is not the part's fault."""


@dataclass(frozen=True)
class Given:
    """What a part was given, by the names of the arguments. built_with: to its `__init__`. arguments: to the call."""

    built_with: Mapping[str, Any]
    arguments: Mapping[str, Any]


def raised(error: BaseException, given: Given) -> Fault:
    """An exception as a fault: the line of the learner's code, none of ours, and what the part was called with.

    Raises `CannotTry` for one that is nobody's fault: Triton has found no driver when it was imported.
    """
    message = re.sub(r"0x[0-9a-f]+", "0x…", words(error))  # an address is another one each time
    if "0 active drivers" in message:
        raise CannotTry(NO_DRIVER) from None
    what = f"the part raised {type(error).__name__}: {message:.300}".rstrip(": ")
    line, detail = place(error)
    details = (detail, *_lines(given.arguments))
    swapped = _taken_for_another(error, given)
    if swapped:
        return Fault(what, details, swapped, cause=Cause.INTERFACE)
    cause = Cause.EXITS if isinstance(error, SystemExit | KeyboardInterrupt) else Cause.RAISES
    reason = "a part returns, or raises an exception; it never ends the program" if cause is Cause.EXITS else ""
    reason = reason or _reason(error, message, line, given)
    return Fault(what, details, reason, cause=cause, or_else=Cause.ROLLOVER_MISSED if reason.startswith(FULL) else None)


def _taken_for_another(error: BaseException, given: Given) -> str:
    """Why an object that the part was built with lacks an attribute: another of them has it. Empty if none does."""
    if not isinstance(error, AttributeError) or not error.name:
        return ""
    wanted = [name for name, value in given.built_with.items() if hasattr(value, error.name)]
    mistaken = [name for name, value in given.built_with.items() if value is error.obj]
    if not (wanted and mistaken):
        return ""
    order = ", ".join(given.built_with)
    return f"`{mistaken[0]}` is used as if it were `{wanted[0]}`: an engine builds a part with ({order}), in this order"


def _lines(arguments: Mapping[str, Any]) -> Iterator[str]:
    """What the part was called with, a line each."""
    for name, value in arguments.items():
        yield f"{name}: {described(value)}"


def described(value: Any) -> str:
    """Shapes, types and lengths of what a part is given."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"a tensor {list(value.shape)}, {kind}, on {value.device}, strides {value.stride()}"
    if isinstance(value, InferenceSession):
        return f"a session of {counted(value.num_cached_tokens, 'token')}, {_table(value)}"
    if isinstance(value, DecodeInputs):
        shape = list(value.block_tables.shape)
        return f"{described(value.sessions)}; context_lens {value.context_lens.tolist()[:MOST]}, block_tables {shape}"
    if isinstance(value, list | tuple) and value:
        if all(isinstance(one, InferenceSession) for one in value):
            if len(value) == 1:
                return f"1 session, with {counted(value[0].num_cached_tokens, 'token')}"
            lengths = ", ".join(str(one.num_cached_tokens) for one in value[:MOST])
            return f"{len(value)} sessions, with {lengths}{', ...' if value[MOST:] else ''} tokens"
        return f"{len(value)} × {described(value[0])}"
    return (
        f"{value!r:.80}"
        if isinstance(value, int | float | str | list | tuple)
        else f"an object of {type(value).__name__}"
    )


def _table(session: InferenceSession) -> str:
    if isinstance(session.table, ONE_TABLE.table):
        return f"block table {list(session.table)}"
    return f"block list {session.block_ids_per_layer[0]} in layer 0"


def place(error: BaseException) -> tuple[str, str]:
    """The learner's line that raised it, alone and with where it stands."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)] or frames[-1:]
    frame = theirs[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return line, f"in line {frame.lineno}, in {frame.name}: {line or '(its text is not available)'}"


def place_in_trace(trace: str) -> tuple[str, ...]:
    """The learner's line in the frames that `faulthandler` has written, the innermost first: a detail, or none."""
    frames = re.findall(r'^ *File "(.*)", line (\d+) in (.*)$', trace, re.MULTILINE)
    for file, number, name in frames:
        if not file.startswith(NOT_THEIRS) and not file.startswith("<frozen"):
            line = linecache.getline(file, int(number)).strip()
            return (f"in line {number}, in {name}: {line or '(its text is not available)'}",)
    return ()


def _reason(error: BaseException, message: str, line: str, given: Given) -> str:
    kv, sessions = given.built_with.get("kv"), given.arguments.get("sessions", ())
    if type(error).__name__ == "BlockError":
        return "the id of a block that was given back, of another layer, or a block index where an id belongs"
    if "pin_memory" in message:
        return "there is pinned memory only where there is a GPU: `pin_memory=kv.device.type == 'cuda'`"
    if "dummy base class Event" in message:
        return "`events_for(kv.device)` gives what makes events, on a CPU too"
    if "list index out of range" in message and re.search(r"\[(-1|0)\]", line) and _has_empty_list(kv, sessions):
        return "a new session's block list is empty: it has no last block"
    if re.search("tensors used as indices must be long|dtype int32 or int64 for index", message) and _has_nothing(
        error
    ):
        return "a tensor of an empty list is float: where there is nothing to write, do not write"
    sizes = re.search(r"index (\d+) is out of bounds for dimension (\d+) with size (\d+)", message)
    if sizes and kv is not None:
        index, dimension, size = map(int, sizes.groups())
        return _why_out_of_bounds(index, dimension, size, kv)
    sizes = re.search(r"shape mismatch: value tensor of shape \[(\d+).*\] .* indexing result of shape \[(\d+)", message)
    if sizes and int(sizes[1]) == len(sessions) > int(sizes[2]):
        return "K and V are those of the whole batch: only the rows `batch_idx` go into the store"
    return ""


def _has_empty_list(kv: Any, sessions: Sequence[InferenceSession]) -> bool:
    return any(not ids for session in sessions for ids in layout_of(kv).id_lists(kv, session.table))


def _has_nothing(error: BaseException) -> bool:
    """Whether a variable where the error was raised is an empty list, or an empty tensor of floats."""
    values: list[Any] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith(NOT_THEIRS):
            values = list(frame.f_locals.values())
    empty = [x for x in values if isinstance(x, torch.Tensor) and x.numel() == 0 and x.is_floating_point()]
    return bool(empty) or any(isinstance(x, list) and not x for x in values)


def _why_out_of_bounds(index: int, dimension: int, size: int, kv: Any) -> str:
    if layout_of(kv) is ONE_TABLE:
        in_a_block = dimension > 0 and size == kv.block_size
        return f"a position in the session, {index}, where its slot in the block belongs" if in_a_block else ""
    if dimension == 0 and size == kv.num_blocks and index in kv.blocks_in_use:
        return f"perhaps {index} is a block's id; the cache of a layer is indexed by `info.block_index`"
    if dimension > 0 and index == size == kv.block_size:
        return f"{FULL}: the slot must be less than block_size, {size}"
    return ""
