"""Paged decode attention on a CPU: a block table is a sparsity pattern, so sparse operations read K and V in place.

Row (session, head) of the scores, a sampled dense-dense product, has values only where its context lies; their sum
over V is an embedding bag. (FlashInfer describes paged attention so, over a block-sparse matrix.)
"""

from __future__ import annotations

import warnings
from functools import partial

import torch

from ..kv.pool import KVPool
from .reference import context_positions, context_rows

# torch warns of the first sparse CSR tensor of a process that they are in beta; what is used of them here is tested.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), dtype=torch.float32, device="cpu")


class SparseAttention:
    """A `PagedAttention` on a CPU in float32, the only type that torch's sparse operations take. num_heads: of q."""

    def __init__(self, kv: KVPool, num_heads: int) -> None:
        _, self.num_kv_heads, self.block_size, self.head_dim = kv.k_layers[0].shape
        self.num_heads, self.group = num_heads, num_heads // self.num_kv_heads
        # Each layer as rows [num_blocks * H_kv * block_size, D]; K transposed, as the product wants it.
        self.k_columns = [k.view(-1, self.head_dim).t() for k in kv.k_layers]
        self.v_rows = [v.view(-1, self.head_dim) for v in kv.v_layers]

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        """Each row of the pattern has one place more than the context, for the new token, whose K and V are not in the
        cache yet: `run` puts its score there."""
        L, B, _ = block_tables.shape
        H, H_kv, width = self.num_heads, self.num_kv_heads, max_context_len + 1
        positions, mask = context_positions(context_lens, width)
        tables = block_tables[:1] if block_tables.stride(0) == 0 else block_tables  # one that all layers share
        rows = context_rows(tables, positions, H_kv, self.block_size)  # [L or 1, B, H_kv, width]
        self.rows = self._for_query_heads(rows, 2).flatten(1).expand(L, -1).unbind()
        mask[..., -1] = 0.0
        self.mask = mask if bool((context_lens < max_context_len).any()) else None
        # Cleared, as `beta=0` below multiplies what is there.
        self.scores = torch.zeros(B, H, width, dtype=torch.float32, device="cpu")
        starts = torch.arange(0, B * H * width + 1, width, device="cpu")
        # Two bags a row: its context, and the new token's place, which is not wanted.
        self.bags = torch.stack([starts[:-1], starts[1:] - 1], dim=1).flatten()
        size, values = (B * H, len(self.v_rows[0])), self.scores.view(-1)
        csr = partial(torch.sparse_csr_tensor, starts, device="cpu", check_invariants=False)
        patterns = [csr(row, values, size) for row in self.rows[: len(tables)]]
        self.patterns = patterns * (L // len(tables))

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        B, H, D = q.shape
        k_new, v_new = self._for_query_heads(k_new, 1), self._for_query_heads(v_new, 1)
        q = q * D**-0.5
        pattern, scores = self.patterns[layer_idx], self.scores
        torch.sparse.sampled_addmm(pattern, q.view(-1, D), self.k_columns[layer_idx], beta=0.0, out=pattern)
        scores[..., -1] = torch.linalg.vecdot(q, k_new)
        weights = (scores if self.mask is None else scores + self.mask).softmax(dim=-1)
        bags = torch.embedding_bag(
            self.v_rows[layer_idx], self.rows[layer_idx], self.bags, False, 0, False, weights.view(-1)
        )
        return torch.addcmul(bags[0][::2].view(B, H, D), weights[..., -1:], v_new)

    def _for_query_heads(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Each K and V head, in dimension `dim`, once for each query head that reads it; x where that is one."""
        return x if self.group == 1 else x.repeat_interleave(self.group, dim)
