"""Seeing every operation as it is dispatched, without a wait for torch's compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` that no compiled code runs in: torch does not import its compiler for it, which takes
    seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch has its compiler leave out `__torch_dispatch__`; where it never comes, there is no need."""
        return False
