"""Tensors of a late device: operations on them are queued, and whoever wants to see a number waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch._C import DisableTorchFunctionSubclass
from torch.utils._pytree import tree_map

POISON = -(2**40) - 7  # what nobody can take for a token
# What is known of a tensor without its numbers.
KNOWN = frozenset(
    ("size", "dim", "numel", "nelement", "ndimension", "stride", "storage_offset", "element_size", "is_contiguous")
) | frozenset(
    ("data_ptr", "untyped_storage", "get_device", "is_floating_point", "is_pinned", "type", "__len__", "__hash__")
)
NO_NUMPY = "can't convert a tensor of the device to numpy: copy it to the host first"


class Stream(Protocol):
    """What the tensors need of their device."""

    def tell(self, work: Callable[[], object]) -> None: ...

    def wait(self) -> None: ...

    def made(self, result: torch.Tensor, source: torch.Tensor) -> None: ...

    def copy_to_host(self, memory: torch.Tensor, source: torch.Tensor, blocking: bool) -> None: ...


def fill_with_poison(memory: torch.Tensor) -> None:
    """What lies in memory that is going to be written."""
    with torch.inference_mode():
        if memory.dtype.is_floating_point:
            memory.fill_(float("nan"))
        elif memory.dtype in (torch.int64, torch.int32):
            memory.fill_(POISON if memory.dtype is torch.int64 else -(2**30))
        else:
            memory.zero_()


class OnDevice(torch.Tensor):
    """A tensor in the memory of a late device; its numbers are poison until the device has come so far."""

    stream: Stream

    @classmethod
    def on(cls, stream: Stream, tensor: torch.Tensor) -> OnDevice:
        """The same memory, as the device's."""
        made = tensor.as_subclass(cls)
        made.stream = stream
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with DisableTorchFunctionSubclass():
            return _Operation(func, args, kwargs).act()


class _Operation:
    """One operation of which at least one tensor is the device's."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.theirs = [tensor for tensor in _tensors((args, kwargs)) if isinstance(tensor, OnDevice)]
        self.stream = self.theirs[0].stream
        name = func.__name__
        self.name = func.__self__.__name__ if name == "__get__" else name
        self.is_known = name == "__get__" or name in KNOWN

    def act(self) -> Any:
        target: Any = self.args[0] if self.args else None
        if self.name in ("numpy", "__array__"):
            raise TypeError(NO_NUMPY)
        if self.name in ("cpu", "to") and (memory := self._to_host()) is not None:
            return memory
        if self._is_in_place():
            if isinstance(target, OnDevice):
                self.stream.tell(self._later())
                return target
            if self.name == "copy_":
                blocking = not (self.kwargs.get("non_blocking") or (len(self.args) > 2 and self.args[2]))
                self.stream.copy_to_host(target, _plain(self.args[1]), blocking)
                return target
            self.stream.wait()
            return self._now()
        return self._returned()

    def _is_in_place(self) -> bool:
        return self.name == "__setitem__" or (self.name.endswith("_") and not self.name.endswith("__"))

    def _to_host(self) -> torch.Tensor | None:
        """A copy in new memory of the host, for `cpu()` and `to("cpu")`; None for another `to`."""
        where = [*self.args[1:], *self.kwargs.values()]
        if self.name == "to" and not any(str(one) == "cpu" for one in where if isinstance(one, (str, torch.device))):
            return None
        source = _plain(self.args[0])
        memory = torch.empty_like(source)
        asynchronous = self.name == "to" and (self.kwargs.get("non_blocking") or True in self.args[1:])
        self.stream.copy_to_host(memory, source, not asynchronous)
        return memory

    def _returned(self) -> Any:
        """What it returns: a view at once, new tensors when the device has made them, numbers after a wait."""
        result = self._now()
        results = list(_tensors(result))
        if self.is_known and not results:
            return result
        if not results:
            self.stream.wait()
            return self._now()
        there = {tensor.untyped_storage().data_ptr() for tensor in self.theirs}
        new = [tensor for tensor in results if tensor.untyped_storage().data_ptr() not in there]
        if new:
            later = self._later()
            for tensor in new:
                fill_with_poison(tensor)
                self.stream.made(tensor, self.theirs[0])
            self.stream.tell(lambda: [old.copy_(made) for old, made in zip(results, _tensors(later()), strict=True)])
        return tree_map(lambda one: OnDevice.on(self.stream, one) if isinstance(one, torch.Tensor) else one, result)

    def _now(self) -> Any:
        return self.func(*tree_map(_plain, self.args), **tree_map(_plain, self.kwargs))

    def _later(self) -> Callable[[], Any]:
        func, args, kwargs = self.func, tree_map(_plain, self.args), tree_map(_plain, self.kwargs)
        return lambda: func(*args, **kwargs)


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, OnDevice) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
