"""What kernels do: their launches, and in Triton's interpreter every address that a program reads or writes.

An address that belongs to none of a launch's tensors is refused before it is used: without this a kernel that runs past
its tensors ends the process, or reads what happens to lie there.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ...kernels import TRITON_AVAILABLE
from . import causes_of, kind_of
from .early_start import LISTENERS

if TRITON_AVAILABLE:
    from triton.runtime import JITFunction, interpreter

# What reads or writes memory in the interpreter: which argument has the addresses, and which says whether each is used.
ACCESSES: dict[str, tuple[str, int, int | None]] = {
    "create_masked_load": ("reads", 0, 1),
    "create_masked_store": ("writes", 0, 2),
    "create_atomic_rmw": ("writes", 1, 3),
    "create_atomic_cas": ("writes", 0, None),
}
Hooked = Callable[..., Any]  # a method of the interpreter


class OutsideMemoryError(Exception):
    """A kernel has computed an address outside of its tensors. The message names the program and the address."""


def outside_memory(error: BaseException | None) -> OutsideMemoryError | None:
    """The error of a kernel that has left its tensors, where another one comes of it; the interpreter wraps it."""
    return next((one for one in causes_of(error) if isinstance(one, OutsideMemoryError)), None)


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

    def name_of(self, address: int) -> str:
        names = (memory.name for memory in self.launched if memory.start <= address < memory.end)
        return next(names, "memory of no argument")


class Listener:
    """What hears of kernels; of those that are compiled only that they are launched."""

    def launch(self, kernel: str, options: dict[str, Any]) -> None:
        """A kernel is launched, with these options."""

    def ended(self) -> None:
        """It has ended, or has failed."""

    def program(self, number: tuple[int, ...]) -> None:
        """The next program begins."""

    def access(self, access: Access) -> None:
        """A program is about to read or write."""

    def said(self, what: str) -> None:
        """A program says `wait` or `start`."""


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """In here a listener hears of all kernels."""
    with ExitStack() as stack:
        LISTENERS.append(listener.said)
        stack.callback(LISTENERS.remove, listener.said)
        for owner, name, hook in _hooks(listener) if TRITON_AVAILABLE else ():
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, hook(original))
        yield


def guarded_kernels() -> Any:
    """In here every kernel that the interpreter runs raises `OutsideMemoryError` rather than leave its tensors."""
    return heard_by(_Guard())


def _hooks(listener: Listener) -> Iterator[tuple[Any, str, Callable[[Hooked], Hooked]]]:
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    tensors: list[Memory] = []

    def launching(original: Hooked) -> Hooked:
        def launch(kernel: Any, *arguments: Any, **options: Any) -> Any:
            listener.launch(kernel.fn.__name__, options)
            try:
                return original(kernel, *arguments, **options)
            finally:
                listener.ended()

        return launch

    def taking(original: Hooked) -> Hooked:
        def take(kernel: Any, *given: Any) -> Any:
            taken = original(kernel, *given)
            tensors[:] = _memories(inspect.getcallargs(kernel.fn, *taken[0], **taken[1]))
            return taken

        return take

    def beginning(original: Hooked) -> Hooked:
        def begin(builder: Any, *number: int) -> Any:
            listener.program(tuple(map(int, number)))
            return original(builder, *number)

        return begin

    yield executor, "__call__", launching
    yield JITFunction, "run", launching
    yield executor, "_init_args_hst", taking  # in which the arguments come to the host
    yield builder, "set_grid_idx", beginning
    for name, how in ACCESSES.items():
        yield builder, name, partial(_accessing, listener, tensors, how)


def _memories(arguments: dict[str, Any]) -> Iterator[Memory]:
    for name, tensor in arguments.items():
        if isinstance(tensor, torch.Tensor):
            memory = tensor.untyped_storage()
            yield Memory(name, tensor, memory.data_ptr(), memory.data_ptr() + memory.nbytes())


def _accessing(listener: Listener, tensors: list[Memory], how: tuple[str, int, int | None], original: Hooked) -> Hooked:
    verb, pointers, used = how

    def access(builder: Any, *arguments: Any) -> Any:
        handle = arguments[pointers]
        addresses = np.asarray(handle.data, dtype=np.uint64).reshape(-1)
        if used is not None:
            mask = np.broadcast_to(np.asarray(arguments[used].data, dtype=bool), handle.data.shape).reshape(-1)
            addresses = addresses[mask]
        listener.access(Access(tuple(map(int, builder.grid_idx)), verb, addresses, tensors))
        return original(builder, *arguments)

    return access


class _Guard(Listener):
    def access(self, access: Access) -> None:
        addresses, launched = access.addresses, access.launched
        inside = np.zeros(len(addresses), dtype=bool)
        for memory in launched:
            inside |= (addresses >= memory.start) & (addresses < memory.end)
        if not inside.all():
            where = _where(int(addresses[~inside][0]), launched)
            raise OutsideMemoryError(f"program {access.program} {access.verb} {where}")


def _where(address: int, launched: list[Memory]) -> str:
    """An address in words: how far it is from the nearest tensor of the launch."""
    if not launched:
        return "memory, and the launch was given no tensor"
    nearest = min(launched, key=lambda memory: max(memory.start - address, address - memory.end))
    size = nearest.tensor.element_size()
    distance = (nearest.start - address) if address < nearest.start else (address - nearest.end + size)
    side = "before" if address < nearest.start else "behind"
    return f"{-(-distance // size)} elements {side} the memory of `{nearest.name}` ({kind_of(nearest.tensor)})"
