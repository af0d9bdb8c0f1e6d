"""Kernels in Triton's interpreter: an address that belongs to none of a launch's tensors is refused before it is used.

Without this a kernel that runs past its tensors ends the process, or reads what happens to lie there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from ...kernels import TRITON_AVAILABLE

if TRITON_AVAILABLE:
    from triton.runtime import interpreter

TAKE_ARGUMENTS = "_init_args_hst"  # the interpreter's method in which a launch's arguments come to the host
# What reads or writes memory in the interpreter: which argument has the addresses, and which says whether each is used.
ACCESSES = {
    "create_masked_load": ("reads", 0, 1),
    "create_masked_store": ("writes", 0, 2),
    "create_atomic_rmw": ("writes", 1, 3),
    "create_atomic_cas": ("writes", 0, None),
}


class OutsideMemoryError(Exception):
    """A kernel has computed an address outside of its tensors. The message names the program and the address."""


def outside_memory(error: BaseException | None) -> OutsideMemoryError | None:
    """The error of a kernel that has left its tensors, where another one comes of it; the interpreter wraps it."""
    while error is not None and not isinstance(error, OutsideMemoryError):
        error = error.__cause__ or error.__context__
    return error


class Memory(NamedTuple):
    """A tensor of a launch: where its memory begins and ends, in bytes."""

    name: str
    tensor: torch.Tensor
    start: int
    end: int


class Access(NamedTuple):
    """What a program reads or writes at once. verb: `reads` or `writes`. addresses: of numbers that no mask hides."""

    program: tuple[int, ...]
    verb: str
    addresses: np.ndarray
    launched: list[Memory]  # the tensors of the launch


@contextmanager
def guarded_kernels() -> Iterator[None]:
    """Let every kernel that the interpreter runs raise `OutsideMemoryError` rather than leave its tensors."""
    with accesses_seen_by(_look_at):
        yield


@contextmanager
def accesses_seen_by(look: Callable[[Access], None]) -> Iterator[None]:
    """In here `look` sees whatever a kernel that the interpreter runs is about to read or to write."""
    if not TRITON_AVAILABLE:
        yield
        return
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    launched: list[Memory] = []
    take_arguments = getattr(executor, TAKE_ARGUMENTS)
    originals = {name: getattr(builder, name) for name in ACCESSES}

    def look_at_arguments(self: Any, args_dev: Any, kwargs: Any) -> Any:
        taken = take_arguments(self, args_dev, kwargs)
        launched[:] = memories_of(inspect.getcallargs(self.fn, *taken[0], **taken[1]))
        return taken

    setattr(executor, TAKE_ARGUMENTS, look_at_arguments)
    for name, access in ACCESSES.items():
        setattr(builder, name, _seen(originals[name], look, launched, *access))
    try:
        yield
    finally:
        setattr(executor, TAKE_ARGUMENTS, take_arguments)
        for name, original in originals.items():
            setattr(builder, name, original)


def memories_of(arguments: dict[str, Any]) -> list[Memory]:
    found = []
    for name, tensor in arguments.items():
        if isinstance(tensor, torch.Tensor):
            memory = tensor.untyped_storage()
            found.append(Memory(name, tensor, memory.data_ptr(), memory.data_ptr() + memory.nbytes()))
    return found


def _seen(
    original: Any, look: Callable[[Access], None], launched: list[Memory], verb: str, pointers: int, used: int | None
) -> Any:
    def access(self: Any, *arguments: Any) -> Any:
        handle = arguments[pointers]
        addresses = np.asarray(handle.data, dtype=np.uint64).reshape(-1)
        if used is not None:
            mask = np.broadcast_to(np.asarray(arguments[used].data, dtype=bool), handle.data.shape).reshape(-1)
            addresses = addresses[mask]
        look(Access(tuple(map(int, self.grid_idx)), verb, addresses, launched))
        return original(self, *arguments)

    return access


def _look_at(access: Access) -> None:
    addresses, launched = access.addresses, access.launched
    inside = np.zeros(len(addresses), dtype=bool)
    for memory in launched:
        inside |= (addresses >= memory.start) & (addresses < memory.end)
    if inside.all():
        return
    address = int(addresses[~inside][0])
    raise OutsideMemoryError(f"program {access.program} {access.verb} {_where(address, launched)}")


def _where(address: int, launched: list[Memory]) -> str:
    """An address in words: how far it is from the nearest tensor of the launch."""
    if not launched:
        return "memory, and the launch was given no tensor"
    nearest = min(launched, key=lambda memory: max(memory.start - address, address - memory.end))
    size, tensor = nearest.tensor.element_size(), nearest.tensor
    distance = (nearest.start - address) if address < nearest.start else (address - nearest.end + size)
    side = "before" if address < nearest.start else "behind"
    return (
        f"{-(-distance // size)} elements {side} the memory of `{nearest.name}` "
        f"(a tensor {list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')})"
    )
