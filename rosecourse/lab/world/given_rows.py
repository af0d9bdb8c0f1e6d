"""K and V of a step as a model gives them: views, whose rows lie now near each other and now far apart."""

from __future__ import annotations

import torch

from .tags import AROUND


def as_given(tokens: torch.Tensor, step: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Copies of K and V, for each layer [B, H, D]: views of a fused projection, as those of the model are, or others.

    tokens: [2, L, B, H, D]. step: its number, by which the rows lie otherwise.
    """
    keys, values = tokens
    heads = keys.shape[2]
    fused = _rows(values, 3 * heads)
    k_rows, v_rows = fused[:, :, heads : 2 * heads], fused[:, :, 2 * heads :]
    if step % 7 == 5:
        k_rows, v_rows = _rows(keys, heads), _rows(values, heads)
    elif step % 2:
        v_rows = _rows(values, heads + 1)[:, :, 1:]
    elif step % 4 == 0:
        k_rows = _rows(keys, heads + 2)[:, :, 2:]
    k_rows.copy_(keys)
    v_rows.copy_(values)
    return list(k_rows), list(v_rows)


def _rows(like: torch.Tensor, heads: int) -> torch.Tensor:
    """Memory for rows of so many heads, [L, B, heads, D], with as much before and behind it. like: [L, B, H, D]."""
    layers, batch, _, head_dim = like.shape
    memory = like.new_full((layers + 2, batch, heads, head_dim), AROUND)
    return memory[1:-1]
