"""Part `prefill`: the prompts of a batch, in one flat row; their K and V go straight into the sessions' blocks.

On a GPU pads fill the row up to one of few sizes: the first prefill with a new number of rows takes longer than others
(data/prefills.csv). And a prefill of few tokens is one replay of a CUDA graph: to launch its operations takes the host
longer than the GPU to run them. (vLLM does both for batches of up to 512 tokens, prompts among them.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import EngineConfig
from ..kernels import cached_attention_for
from ..kv.buffers import index_tensor
from ..kv.pool import KVPool
from ..models.shape import Attend, Model, query_heads_per_kv_head
from ..request.session import InferenceSession
from .graphs import CUDAGraphs, Graph

CAUSAL = (-1, 0)  # a window: all that is to the left, and nothing to the right
LEAST = 64  # rows: for fewer, the weights have to be read all the same
MOST = 512  # rows of a graph: to launch more takes the host no longer, and the GPU longer to run them


class Prefill:
    """The host does not wait for any of it. Whatever the prompts, the shapes are few."""

    def __init__(self, model: Model, kv: KVPool, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        self.attention = prompt_attention_for(model, kv)
        # A CPU's library takes no time for a new size, and pads need a block that no session can hold.
        self.pads = Pads(model, kv, pad_to_bucket if kv.device.type == "cuda" and kv.spare_blocks else int)
        self.graphs = self.graphs_of(config)  # by their number of rows

    def graphs_of(self, config: EngineConfig) -> dict[int, PromptGraph]:
        """Graphs of short prefills, where all of them can be alike; with a budget of tokens a step, of mixed steps."""
        alike = isinstance(self.attention, VarlenAttention) and self.pads.size is pad_to_bucket
        return prompt_graphs(self.compute, self.kv, config, CUDAGraphs()) if alike else {}

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        num_tokens = sum(len(session.token_ids) - session.num_cached_tokens for session in sessions)
        return self.logits_of(PromptTokens(self.kv, [*sessions, *self.pads(num_tokens)]), len(sessions))

    def logits_of(self, tokens: PromptTokens, num_sessions: int) -> Tensor:
        """Logits [num_sessions, vocab_size] of the first of these prompts; the others are pads."""
        graph = self.graphs.get(len(tokens.token_ids))
        if graph is None or not graph.can_hold(tokens, num_sessions):
            return self.compute(tokens, tokens.last_rows[:num_sessions])
        return graph(tokens, num_sessions)

    def compute(self, tokens: PromptTokens | PromptGraph, rows: Tensor) -> Tensor:
        """Logits [number of rows, vocab_size] for the token after each of these rows of the tokens."""
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[rows])


class PromptTokens:
    """N tokens to compute, of B sessions. The first `num_cached_tokens` of each (a prefix hit) are not among them.

    lengths: for each session, tokens that the cache has and tokens to compute.
    """

    def __init__(self, kv: Any, sessions: Sequence[InferenceSession | Pad]) -> None:
        self.lengths = [(s.num_cached_tokens, len(s.token_ids) - s.num_cached_tokens) for s in sessions]
        token_ids = [t for s in sessions for t in s.token_ids[s.num_cached_tokens :]]
        positions = [p for cached, new in self.lengths for p in range(cached, cached + new)]
        session_of = [b for b, (_, new) in enumerate(self.lengths) for _ in range(new)]
        per_token = index_tensor([token_ids, positions, session_of], kv.device)  # [3, N]
        self.token_ids, self.positions, session_of_token = per_token.unbind()
        ends = accumulate(new for _, new in self.lengths)
        self.last_rows = index_tensor([end - 1 for end in ends], kv.device)  # [B], each session's last token
        self.tables = kv.block_indices([session.table for session in sessions])  # [L, B, blocks]
        # Where the K and V of each token go: a block [L, N], and a slot in it [N].
        self.blocks = self.tables[:, session_of_token, self.positions // kv.block_size]
        self.slots = self.positions % kv.block_size


# -- pads -----------------------------------------------------------------------------------------------------------


class Pad(NamedTuple):
    """A prompt of zeros, as `PromptTokens` looks at a session."""

    token_ids: list[int]
    table: list[int]
    num_cached_tokens: int = 0


def pad_to_bucket(num_tokens: int) -> int:
    """The next multiple of 64; above 512 the next of eight sizes from one power of two to the next."""
    step = max(LEAST, 1 << (num_tokens - 1).bit_length() >> 4)
    return -(-num_tokens // step) * step


class Pads:
    """Prompts of a block or less, which fill a prefill up. What they compute goes to the cache's block for pads.

    size: what a number of tokens is filled up to; `int` leaves it as it is.
    """

    def __init__(self, model: Model, kv: KVPool, size: Callable[[int], int] = pad_to_bucket) -> None:
        self.size, self.block = size, kv.num_blocks
        self.longest = min(kv.block_size, model.shape.context)

    def __call__(self, num_tokens: int) -> list[Pad]:
        full, rest = divmod(self.size(num_tokens) - num_tokens, self.longest)
        lengths = [self.longest] * full + [rest] * (rest > 0)
        return [Pad([0] * length, [self.block]) for length in lengths]


# -- attention ------------------------------------------------------------------------------------------------------


def prompt_attention_for(model: Model, kv: KVPool) -> AttentionByGroups | VarlenAttention:
    """The fastest way on a device. `plan(tokens)` gives an `Attend` for tokens whose K and V are in the cache then."""
    device = kv.device
    heads = query_heads_per_kv_head(model.shape.num_heads, model.shape.num_kv_heads)
    half = model.dtype in (torch.float16, torch.bfloat16)
    if half and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        # Only a GPU needs it, and its import takes as long as that of the rest.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        return VarlenAttention(kv, heads, varlen_attn)
    return AttentionByGroups(kv, heads)


class AttentionByGroups:
    """PyTorch's attention of equal lengths, a call for each group of neighbouring sessions that have them."""

    def __init__(self, kv: KVPool, heads_per_kv_head: int) -> None:
        self.kv, self.heads_per_kv_head = kv, heads_per_kv_head

    def plan(self, tokens: Any) -> Attend:
        groups = [(lengths, len(list(same))) for lengths, same in groupby(tokens.lengths)]
        members = [size for _, size in groups]
        rows = [new * size for (_, new), size in groups]

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            tables = tokens.tables[layer_idx].split(members)
            of_groups = zip(groups, tables, q.split(rows), k.split(rows), v.split(rows), strict=True)
            return torch.cat([self._attend(layer_idx, *lengths, *tensors) for (lengths, _), *tensors in of_groups])

        return attention

    def _attend(self, layer_idx: int, cached: int, new: int, tables: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(0, (-1, new)).transpose(1, 2) for x in (q, k, v))  # [members, H or H_kv, new, D]
        mask = None
        if cached:
            total = cached + new
            table = tables[:, : -(-total // self.kv.block_size)]
            k, v = (
                cache[table].transpose(1, 2).flatten(2, 3)[:, :, :total]  # [members, H_kv, total, D]
                for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            )
            mask = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(diagonal=cached)
        k, v = (for_query_heads(x, self.heads_per_kv_head) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(0, 1)


class VarlenAttention:
    """One call for prompts of any lengths: FlashAttention's for sequences of variable length, or, where the cache has
    some of their tokens, a kernel that reads it.

    varlen: `torch.nn.attention.varlen.varlen_attn`, or what computes the same.
    """

    def __init__(self, kv: KVPool, heads_per_kv_head: int, varlen: Callable[..., Any]) -> None:
        self.heads_per_kv_head, self.varlen = heads_per_kv_head, varlen
        self.of_cached = cached_attention_for(kv, heads_per_kv_head)

    def plan(self, tokens: Any) -> Attend:
        if any(cached for cached, _ in tokens.lengths):
            return self.of_cached.plan(tokens)
        cu_seqlens = F.pad(tokens.last_rows + 1, (1, 0)).int()  # [B + 1], where each session's rows begin and end
        longest = max(new for _, new in tokens.lengths)

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (for_query_heads(x, self.heads_per_kv_head) for x in (k, v))
            return self.varlen(q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=CAUSAL)

        return attention


def for_query_heads(x: Tensor, times: int) -> Tensor:
    """Each head of K or V, dimension 1 of x, once for each query head that reads it."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


# -- graphs ---------------------------------------------------------------------------------------------------------


class PromptGraph:
    """A prefill of so many rows, whatever prompts they are of, as one replay: over tokens that stay where they are.

    There is room for as many sequences as rows. Those that are not there have no rows. `lengths` stands for the longest
    that there can be. width: blocks of the longest session of which tokens may be cached; 0 where none are.
    """

    def __init__(
        self, compute: Callable[[Any, Tensor], Tensor], kv: KVPool, size: int, most: int, width: int, graph: Graph
    ) -> None:
        """most: sessions that get logits."""
        numbers = torch.zeros(5, size, dtype=torch.int64, device=kv.device)
        self.token_ids, self.positions, self.last_rows, self.block, self.slots = numbers.unbind()
        self.block.fill_(kv.num_blocks)  # of pads, until there are tokens
        self.table = self.block[:, None].repeat(1, width)
        # With pads there is one table for all layers.
        self.blocks, self.tables = (blocks.expand(kv.num_layers, *blocks.shape) for blocks in (self.block, self.table))
        self.lengths, self.most, self.width, self.graph = [(int(width > 0), size)], min(most, size), width, graph

        def run() -> None:  # its outcome is kept: no other graph gets that memory
            self.logits = compute(self, self.last_rows[: self.most])

        graph.warm_up(run)
        graph.capture(run)

    def can_hold(self, tokens: PromptTokens, num_sessions: int) -> bool:
        """Whether a replay computes these tokens, and logits of so many sessions."""
        return num_sessions <= self.most and (self.width > 0 or not any(cached for cached, _ in tokens.lengths))

    def __call__(self, tokens: PromptTokens, num_sessions: int) -> Tensor:
        """Logits [num_sessions, vocab_size] of the first sequences, for whoever calls to keep."""
        self.token_ids.copy_(tokens.token_ids)
        self.positions.copy_(tokens.positions)
        self.block.copy_(tokens.blocks[0])
        self.slots.copy_(tokens.slots)
        self.last_rows.fill_(len(self.token_ids) - 1)
        self.last_rows[: len(tokens.last_rows)].copy_(tokens.last_rows)
        table = tokens.tables[0, :, : self.width]
        self.table[: len(table), : table.shape[1]].copy_(table)
        self.graph.replay()
        return self.logits[:num_sessions].clone()  # the next replay writes over them


def prompt_graphs(
    compute: Callable[[Any, Tensor], Tensor], kv: KVPool, config: EngineConfig, new_graph: Callable[[], Graph]
) -> dict[int, PromptGraph]:
    """A graph for each size that prefills of this engine can have, up to `MOST` rows; none where a capture fails.

    compute: see `Prefill.compute`. With a budget of tokens a step some of a session may be cached. The largest is
    captured first: the others fit into its memory.
    """
    budget = config.max_num_batched_tokens
    most, width = budget or config.max_batch_size * (config.max_seq_len or MOST), config.max_blocks if budget else 0
    graphs: dict[int, PromptGraph] = {}
    try:
        with torch.inference_mode():
            for size in range(pad_to_bucket(min(MOST, most)), 0, -LEAST):
                graphs[size] = PromptGraph(compute, kv, size, config.max_batch_size, width, new_graph())
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        warnings.warn(f"no graph of a prefill of {size} tokens, so they run eagerly: {first_line}", stacklevel=2)
        return {}
    return graphs
