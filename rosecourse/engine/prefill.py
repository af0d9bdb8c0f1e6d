"""Prefill: all prompt tokens of a batch in one flat row; their K and V go straight into the sessions' blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..kv.buffers import index_tensor
from ..kv.layout import CacheLayout
from ..models.shape import Model, query_heads_per_kv_head
from ..request.session import InferenceSession


class Group(NamedTuple):
    """Neighbouring sessions of equal lengths: their attention is one call."""

    cached: int  # tokens of each whose K and V are in the cache already (a prefix hit)
    new: int  # tokens of each to compute
    members: slice  # which sessions
    rows: slice  # which tokens of the flat row


def group_by_lengths(lengths: Sequence[tuple[int, int]]) -> list[Group]:
    """Put consecutive sessions of equal (cached, new) lengths together."""
    groups: list[Group] = []
    for (cached, new), same in groupby(lengths):
        size = len(list(same))
        member = groups[-1].members.stop if groups else 0
        row = groups[-1].rows.stop if groups else 0
        groups.append(Group(cached, new, slice(member, member + size), slice(row, row + size * new)))
    return groups


class Prefill:
    """One prefill pass. The first `num_cached_tokens` tokens of a session (a prefix hit) are not computed again.

    Its index tensors go to the device without waiting, as those of the decode step do.
    """

    def __init__(self, model: Model, kv: CacheLayout, sessions: Sequence[InferenceSession]) -> None:
        self.model = model
        self.kv = kv
        self.heads_per_kv_head = query_heads_per_kv_head(model.shape.num_heads, model.shape.num_kv_heads)
        lengths = [(s.num_cached_tokens, len(s.token_ids) - s.num_cached_tokens) for s in sessions]
        self.groups = group_by_lengths(lengths)
        token_ids = [t for s in sessions for t in s.token_ids[s.num_cached_tokens :]]
        positions = [p for cached, new in lengths for p in range(cached, cached + new)]
        session_of = [b for b, (_, new) in enumerate(lengths) for _ in range(new)]
        per_token = index_tensor([token_ids, positions, session_of], kv.device)  # [3, N], N tokens in all
        self.token_ids, self.positions, session_of_token = per_token.unbind()
        ends = accumulate(new for _, new in lengths)
        self.last_rows = index_tensor([end - 1 for end in ends], kv.device)  # [B], each session's last token
        self.tables = kv.block_indices([session.table for session in sessions])  # [L, B, blocks]
        # Where the K and V of each token go: a block [L, N], and a slot in it [N].
        self.blocks = self.tables[:, session_of_token, self.positions // kv.block_size]
        self.slots = self.positions % kv.block_size

    def run(self) -> torch.Tensor:
        """Returns logits [B, vocab_size] for the token after each session's last."""
        hidden = self.model.hidden(self.token_ids, self.positions, self.attend)
        return self.model.logits(hidden[self.last_rows])

    def attend(self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write K and V to the cache, then causal attention; q and the result: [N, H, D], k and v: [N, H_kv, D]."""
        self.kv.write_tokens(layer_idx, self.blocks[layer_idx], self.slots, k, v)
        return torch.cat([self._attend_group(group, layer_idx, q, k, v) for group in self.groups])

    def _attend_group(
        self, group: Group, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (
            x[group.rows].unflatten(0, (-1, group.new)).transpose(1, 2) for x in (q, k, v)
        )  # [members, H or H_kv, new, D]
        mask = None
        if group.cached:
            total = group.cached + group.new
            table = self.tables[layer_idx, group.members, : -(-total // self.kv.block_size)]
            k, v = (
                cache[table].transpose(1, 2).flatten(2, 3)[:, :, :total]  # [members, H_kv, total, D]
                for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            )
            mask = torch.ones(group.new, total, dtype=torch.bool, device=q.device).tril(diagonal=group.cached)
        k, v = (self._for_query_heads(x) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(0, 1)

    def _for_query_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Each head of K or V [members, H_kv, T, D] once for each query head that reads it; x where that is one."""
        return x if self.heads_per_kv_head == 1 else x.repeat_interleave(self.heads_per_kv_head, dim=1)
