"""Counters that are true on every machine: what a running engine does, seen from outside."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperationCounter(TorchDispatchMode):
    """Counts the torch operations that run inside a `with` block, by name, such as `index_select`.

    A tensor made from a Python list counts as `from_list`. Views, which move nothing, count as what they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts["from_list" if name in ("lift_fresh", "lift_fresh_copy") else name] += 1
        return func(*args, **(kwargs or {}))
