"""Paged decode attention on a CPU: a block table is a sparsity pattern, so sparse operations read K and V in place.

Row (session, head) of the scores, a sampled dense-dense product, has values only where its context lies; their sum
over V is an embedding bag. (FlashInfer describes paged attention so, over a block-sparse matrix.)
"""

from __future__ import annotations

import warnings
from functools import partial

import torch
import torch.nn.functional as F

from ..kv.pool import KVPool

# torch warns of the first sparse CSR tensor of a process that they are in beta; what is used of them here is tested.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1), dtype=torch.float32, device="cpu")


class SparseAttention:
    """A `PagedAttention` on a CPU in float32, the only type that torch's sparse operations take. num_heads: of q."""

    def __init__(self, kv: KVPool, num_heads: int) -> None:
        _, self.num_kv_heads, self.block_size, self.head_dim = kv.k_layers[0].shape
        self.num_heads, self.group = num_heads, num_heads // self.num_kv_heads
        places = torch.arange(num_heads, device="cpu")[:, None, None] // self.group * self.block_size
        self.places = places + torch.arange(self.block_size, device="cpu")  # of a block's rows, by query head
        # Each layer as rows [num_blocks * H_kv * block_size, D]; K transposed, as the product wants it.
        self.k_columns = [k.view(-1, self.head_dim).t() for k in kv.k_layers]
        self.v_rows = [v.view(-1, self.head_dim) for v in kv.v_layers]

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        """Each row of the pattern has one place more than the context, for the new token, whose K and V are not in the
        cache yet: `run` puts its score there."""
        rows, mask = self._rows(block_tables, context_lens, max_context_len)
        starts = self._set_patterns(F.pad(rows, (0, 1)), len(block_tables))
        self.mask = mask if mask is None else F.pad(mask, (0, 1))
        # Two bags a row: its context, and the new token's place, which is not wanted.
        self.bags = torch.stack([starts[:-1], starts[1:] - 1], dim=1).flatten()

    def _rows(self, block_tables: torch.Tensor, lens: torch.Tensor, T: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where each position lies in a layer, int64 [L or 1, B, H, T], and what is added to its score [B, 1, T].

        A position past a session's context becomes position 0, whose K and V are finite, with a score of -inf.
        """
        tables = block_tables[:1] if block_tables.stride(0) == 0 else block_tables  # one that all layers share
        blocks = tables[:, :, None, : -(-T // self.block_size), None].long()
        rows = (blocks * (self.num_kv_heads * self.block_size) + self.places).flatten(3)[..., :T]
        if not bool((lens < T).any()):
            return rows, None
        past = (torch.arange(T, device="cpu") >= lens[:, None])[:, None]
        mask = torch.zeros(past.shape, dtype=torch.float32, device="cpu").masked_fill_(past, float("-inf"))
        return torch.where(past, rows[..., :1], rows), mask

    def _set_patterns(self, rows: torch.Tensor, L: int) -> torch.Tensor:
        """Of scores of these rows of L layers; returns where those of each query head begin, and where all end."""
        _, B, H, T = rows.shape
        # Cleared, as `beta=0` below multiplies what is there.
        self.scores = torch.zeros(B, H, T, dtype=torch.float32, device="cpu")
        starts = torch.arange(0, B * H * T + 1, T, device="cpu")
        size, values = (B * H, len(self.v_rows[0])), self.scores.view(-1)
        csr = partial(torch.sparse_csr_tensor, starts, device="cpu", check_invariants=False)
        of_layers = rows.flatten(1).unbind()
        self.rows = of_layers * (L // len(of_layers))
        self.patterns = [csr(row, values, size) for row in of_layers] * (L // len(of_layers))
        return starts

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        if self.group > 1:
            k_new, v_new = (x.repeat_interleave(self.group, 1) for x in (k_new, v_new))
        q = q * self.head_dim**-0.5
        self._score(layer_idx, q)
        self.scores[..., -1] = torch.linalg.vecdot(q, k_new)
        weights = self._weights()
        read = self._read(layer_idx, weights)[::2].view(q.shape)
        return torch.addcmul(read, weights[..., -1:], v_new)

    def _score(self, layer_idx: int, q: torch.Tensor) -> None:
        pattern, columns = self.patterns[layer_idx], self.k_columns[layer_idx]
        torch.sparse.sampled_addmm(pattern, q.view(-1, self.head_dim), columns, beta=0.0, out=pattern)

    def _weights(self) -> torch.Tensor:
        return (self.scores if self.mask is None else self.scores + self.mask).softmax(dim=-1)

    def _read(self, layer_idx: int, weights: torch.Tensor) -> torch.Tensor:
        """The sum over V of each bag."""
        rows, values = self.rows[layer_idx], weights.view(-1)
        return torch.embedding_bag(self.v_rows[layer_idx], rows, self.bags, False, 0, False, values)[0]


class AppendedSparseAttention(SparseAttention):
    """The same where K and V of the new token are in the cache already: it is one of the context."""

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        rows, self.mask = self._rows(block_tables, context_lens + 1, max_context_len + 1)
        self.bags = self._set_patterns(rows, len(block_tables))[:-1]

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        self._score(layer_idx, q * self.head_dim**-0.5)
        return self._read(layer_idx, self._weights()).view(q.shape)
