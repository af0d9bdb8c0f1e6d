"""Which heads of q, K and V fit together. Kernels compute addresses from head counts, so this is asked before a launch.

Sizes: k_layer and v_layer [num_blocks, H_kv, block_size, D], the caches of a layer; q [H, D], and k_new and v_new
[H_kv, D], those of one new token.
"""

from __future__ import annotations

from functools import cache

from ..checks import require
from ..models.shape import query_heads_per_kv_head

Size = tuple[int, ...]


def require_same_heads(k_layer: Size, v_layer: Size, **new: Size) -> None:
    """Raise `ConfigError` unless the caches of K and V have one size and the new K and V have its heads.

    new: the sizes of K and V of a new token, under the names that the message calls them.
    """
    _, heads, _, head_dim = k_layer
    require(v_layer == k_layer, f"the cache of K is {list(k_layer)}, that of V {list(v_layer)}: give two of one size")
    for name, size in new.items():
        require(
            size == (heads, head_dim),
            f"{name} has {size[0]} heads of {size[1]} numbers, the cache {heads} heads of {head_dim}: give the same",
        )


@cache
def group_size(q: Size, k_layer: Size, v_layer: Size, k_new: Size, v_new: Size) -> int:
    """Query heads that share a K and V head, in one call of paged attention.

    Raises `ConfigError` for head counts or head sizes that do not fit each other.
    """
    require_same_heads(k_layer, v_layer, k_new=k_new, v_new=v_new)
    num_heads, head_dim = q
    require(
        head_dim == k_layer[3], f"q has heads of {head_dim} numbers, the cache heads of {k_layer[3]}: give the same"
    )
    return query_heads_per_kv_head(num_heads, k_layer[1])
