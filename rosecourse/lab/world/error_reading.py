"""An exception that a part raised, in plain words: the learner's line, and what it is likely to come from.

A guess is made only where it fits what the part was given: the sessions, the pool, the sizes in torch's message.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...kv.blocks import KVBlockManager
from ...request.session import InferenceSession

NOT_THEIRS = (
    str(Path(__file__).parents[2]),
    *(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib")),
)


def raised(
    error: BaseException, kv: KVBlockManager | None, sessions: Sequence[InferenceSession]
) -> tuple[str, tuple[str, ...], str]:
    """An exception as (what, details, reason): the line of the learner's code, none of ours."""
    message = re.sub(r"0x[0-9a-f]+", "0x…", " ".join(str(error).split()))  # an address is another one each time
    what = f"the part raised {type(error).__name__}: {message:.300}".rstrip(": ")
    line, detail = place(error)
    return what, (detail,), _reason(error, message, line, kv, sessions)


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


def _reason(
    error: BaseException, message: str, line: str, kv: KVBlockManager | None, sessions: Sequence[InferenceSession]
) -> str:
    if type(error).__name__ == "BlockError":
        return "the id of a block that was given back, of another layer, or a block index where an id belongs"
    if "list index out of range" in message and re.search(r"\[(-1|0)\]", line) and _has_empty_list(sessions):
        return "a new session's block list is empty: it has no last block"
    if re.search("tensors used as indices must be long|dtype int32 or int64 for index", message) and _has_nothing(
        error
    ):
        return "a tensor of an empty list is float: when nobody is simple, do not write"
    sizes = re.search(r"index (\d+) is out of bounds for dimension (\d+) with size (\d+)", message)
    if sizes and kv is not None:
        index, dimension, size = map(int, sizes.groups())
        return _why_out_of_bounds(index, dimension, size, kv)
    sizes = re.search(r"shape mismatch: value tensor of shape \[(\d+).*\] .* indexing result of shape \[(\d+)", message)
    if sizes and int(sizes[1]) == len(sessions) > int(sizes[2]):
        return "K and V are those of the whole batch: only the rows `batch_idx` go into the store"
    return ""


def _has_empty_list(sessions: Sequence[InferenceSession]) -> bool:
    return any(not ids for session in sessions for ids in session.block_ids_per_layer)


def _has_nothing(error: BaseException) -> bool:
    """Whether a variable where the error was raised is an empty list, or an empty tensor of floats."""
    values: list[Any] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith(NOT_THEIRS):
            values = list(frame.f_locals.values())
    empty = [x for x in values if isinstance(x, torch.Tensor) and x.numel() == 0 and x.is_floating_point()]
    return bool(empty) or any(isinstance(x, list) and not x for x in values)


def _why_out_of_bounds(index: int, dimension: int, size: int, kv: KVBlockManager) -> str:
    if dimension == 0 and size == kv.num_blocks and index in kv.blocks_in_use:
        return f"perhaps {index} is a block's id; the cache of a layer is indexed by `info.block_index`"
    if dimension > 0 and index == size == kv.block_size:
        return f"the block is full: the slot must be less than block_size, {size}"
    return ""
