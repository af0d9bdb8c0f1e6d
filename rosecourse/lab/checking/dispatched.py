"""Operations of PyTorch's dispatcher."""

from __future__ import annotations

from typing import Any

NO_DATA = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")  # operations that write nothing


def moves_data(func: Any) -> bool:
    """Whether an operation of the dispatcher writes anything: views do not, nor does memory that is only reserved."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "profiler" or name in NO_DATA:
        return False
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return func._schema.is_mutable or not is_view
