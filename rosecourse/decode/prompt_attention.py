"""Causal attention of prompts, over K and V that are new and those that a prefix hit has found in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kv.buffers import index_tensor
from ..kv.pool import KVPool
from ..models.shape import Model, query_heads_per_kv_head
from .prompt_tokens import Tokens

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
CAUSAL = (-1, 0)  # a window: all that is to the left, and nothing to the right


class PromptAttention(Protocol):
    """Attention of a batch of prompts."""

    def plan(self, tokens: Tokens) -> Attention:
        """`attention(layer_idx, q, k, v)` of these tokens, whose K and V are in the cache by then.

        q and the result: [N, H, D]; k, v: [N, H_kv, D].
        """
        ...


def prompt_attention_for(model: Model, kv: KVPool) -> PromptAttention:
    """The fastest way on the cache's device."""
    device = kv.device
    heads = query_heads_per_kv_head(model.shape.num_heads, model.shape.num_kv_heads)
    half = model.dtype in (torch.float16, torch.bfloat16)
    if half and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        # Only a GPU needs it, and its import takes as long as that of the rest.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        return AttentionOfAll(kv, heads, varlen_attn)
    return AttentionByGroups(kv, heads)


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


class AttentionByGroups:
    """PyTorch's attention of equal lengths, a call for each group of sessions that have them.

    On a recent GPU it is cuDNN's in half precision, which makes a plan for each shape that it has not seen, and again
    in each thread: some 50 ms on an H200.
    """

    def __init__(self, kv: KVPool, heads_per_kv_head: int) -> None:
        self.kv, self.heads_per_kv_head = kv, heads_per_kv_head

    def plan(self, tokens: Tokens) -> Attention:
        """See `PromptAttention`."""
        groups = group_by_lengths(tokens.lengths)

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch.cat([self._attend(group, tokens.tables[layer_idx], layer_idx, q, k, v) for group in groups])

        return attention

    def _attend(self, group: Group, tables: Tensor, layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (
            x[group.rows].unflatten(0, (-1, group.new)).transpose(1, 2) for x in (q, k, v)
        )  # [members, H or H_kv, new, D]
        mask = None
        if group.cached:
            total = group.cached + group.new
            table = tables[group.members, : -(-total // self.kv.block_size)]
            k, v = (
                cache[table].transpose(1, 2).flatten(2, 3)[:, :, :total]  # [members, H_kv, total, D]
                for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            )
            mask = torch.ones(group.new, total, dtype=torch.bool, device=q.device).tril(diagonal=group.cached)
        k, v = (for_query_heads(x, self.heads_per_kv_head) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(0, 1)


class AttentionOfAll:
    """One call for prompts of any lengths, FlashAttention's for sequences of variable length, which needs no plan.

    varlen: `torch.nn.attention.varlen.varlen_attn`, or what computes the same.
    """

    def __init__(self, kv: KVPool, heads_per_kv_head: int, varlen: Callable[..., Any]) -> None:
        self.kv, self.heads_per_kv_head, self.varlen = kv, heads_per_kv_head, varlen

    def plan(self, tokens: Tokens) -> Attention:
        """See `PromptAttention`."""
        totals = [cached + new for cached, new in tokens.lengths]
        ends = F.pad(tokens.last_rows + 1, (1, 0)).int()  # [B + 1], where each session's rows begin and end
        longest = max(new for _, new in tokens.lengths)
        cached = any(cached for cached, _ in tokens.lengths)
        all_ends, blocks, slots = self._of_all(tokens, totals) if cached else (ends, None, None)

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if blocks is not None:
                k, v = (
                    cache[blocks[layer_idx], :, slots]  # [sum of totals, H_kv, D]
                    for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
                )
            k, v = (for_query_heads(x, self.heads_per_kv_head) for x in (k, v))
            return self.varlen(q, k, v, ends, all_ends, longest, max(totals), window_size=CAUSAL)

        return attention

    def _of_all(self, tokens: Tokens, totals: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Where the K and V of each session begin and end in a flat row, and where each lies in the cache."""
        device = self.kv.device
        session_of = [b for b, total in enumerate(totals) for _ in range(total)]
        positions = [p for total in totals for p in range(total)]
        owner, position = index_tensor([session_of, positions], device)
        ends = index_tensor([0, *accumulate(totals)], device).int()
        return ends, tokens.tables[:, owner, position // self.kv.block_size], position % self.kv.block_size


def for_query_heads(x: Tensor, times: int) -> Tensor:
    """Each head of K or V, dimension 1 of x, once for each query head that reads it; x where that is one."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)
