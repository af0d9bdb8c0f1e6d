"""Prefill: all prompt tokens of a batch in one flat row; their K and V go straight into the sessions' blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..kv.blocks import KVBlockManager
from ..models.shape import Model
from ..request.session import InferenceSession


class Group(NamedTuple):
    """Sessions that stand together and have equal lengths: their attention is one call."""

    cached: int  # tokens of each whose K and V are in the cache already (a prefix hit)
    new: int  # tokens of each to compute
    members: slice  # which sessions
    rows: slice  # which tokens of the flat row


def group_by_lengths(lengths: Sequence[tuple[int, int]]) -> list[Group]:
    """Consecutive sessions of equal (cached, new) lengths, put together."""
    groups: list[Group] = []
    for (cached, new), same in groupby(lengths):
        size = len(list(same))
        member = groups[-1].members.stop if groups else 0
        row = groups[-1].rows.stop if groups else 0
        groups.append(Group(cached, new, slice(member, member + size), slice(row, row + size * new)))
    return groups


class Prefill:
    """One prefill pass. Of each session the first `num_cached_tokens` tokens (a prefix hit) are not computed again."""

    def __init__(self, model: Model, kv: KVBlockManager, sessions: Sequence[InferenceSession]) -> None:
        self.model = model
        self.kv = kv
        lengths = [(s.num_cached_tokens, len(s.token_ids) - s.num_cached_tokens) for s in sessions]
        self.groups = group_by_lengths(lengths)
        token_ids = [t for s in sessions for t in s.token_ids[s.num_cached_tokens :]]
        positions = [p for cached, new in lengths for p in range(cached, cached + new)]
        self.token_ids = torch.tensor(token_ids, device=kv.device)  # [N], N tokens in all
        self.positions = torch.tensor(positions, device=kv.device)
        new_lens = torch.tensor([new for _, new in lengths], device=kv.device)
        self.last_rows = new_lens.cumsum(0) - 1  # [B]
        self.tables = self._block_tables(sessions)
        # Where the K and V of each token go: a block [L, N], and a slot in it [N].
        session_of = torch.arange(len(sessions), device=kv.device).repeat_interleave(new_lens)
        self.blocks = self.tables[:, session_of, self.positions // kv.block_size]
        self.slots = self.positions % kv.block_size

    def _block_tables(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int64 [L, B, blocks]: physical block of each logical one; what lies past a session's last is not used."""
        most = max(len(s.block_ids_per_layer[0]) for s in sessions)
        tables = [
            [ids + [0] * (most - len(ids)) for s in sessions for ids in (s.block_ids_per_layer[layer_idx],)]
            for layer_idx in range(self.kv.num_layers)
        ]
        return torch.tensor(tables, device=self.kv.device) % self.kv.num_blocks  # global id -> block index

    def run(self) -> torch.Tensor:
        """Returns logits [B, vocab_size] for the token after each session's last."""
        hidden = self.model.hidden(self.token_ids, self.positions, self.attend)
        return self.model.logits(hidden[self.last_rows])

    def attend(self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write K and V to the cache, then causal attention; q, k, v and the result: [N, H, D]."""
        self.kv.write_tokens(layer_idx, self.blocks[layer_idx], self.slots, k, v)
        return torch.cat([self._attend_group(group, layer_idx, q, k, v) for group in self.groups])

    def _attend_group(
        self, group: Group, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (
            x[group.rows].unflatten(0, (-1, group.new)).transpose(1, 2) for x in (q, k, v)
        )  # [members, H, new, D]
        if group.cached == 0:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            total = group.cached + group.new
            table = self.tables[layer_idx, group.members, : -(-total // self.kv.block_size)]
            k, v = (
                cache[table].transpose(1, 2).flatten(2, 3)[:, :, :total]  # [members, H, total, D]
                for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            )
            mask = torch.ones(group.new, total, dtype=torch.bool, device=q.device).tril(diagonal=group.cached)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).flatten(0, 1)
