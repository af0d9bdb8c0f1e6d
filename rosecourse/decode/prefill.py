"""Part `prefill`: the prompts of a batch, in one flat row; their K and V go straight into the sessions' blocks.

    tokens = PromptTokens(kv, [*sessions, *pads])   what is computed, and where its K and V go
    attention = self.attention.plan(tokens)         one call for prompts of all lengths
    compute(tokens, rows)                           the model over the row: eager, or one graph

On a GPU pads fill the row up to one of few sizes. For each number of rows that it has not seen, cuBLAS asks a heuristic
which of its kernels to take: on an H200's host 2 to 5 ms for each of a layer's four products, where a whole prefill of
short prompts takes 4 ms. (vLLM pads the tokens of a step up to the sizes of its CUDA graphs.) And a prefill of few
tokens is one replay of a CUDA graph: to launch its operations takes the host longer than the GPU to run them. (vLLM
replays graphs for batches of up to 512 tokens, prompts among them.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import EngineConfig
from ..kv.buffers import index_tensor
from ..kv.pool import KVPool
from ..models.shape import Model, query_heads_per_kv_head
from ..request.session import InferenceSession
from .graphs import CUDAGraphs, Graph

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Compute = Callable[["Tokens", Tensor], Tensor]
CAUSAL = (-1, 0)  # a window: all that is to the left, and nothing to the right
LEAST = 64  # rows: for fewer, the weights have to be read all the same
MOST = 512  # rows of a graph: to launch more takes the host no longer, and the GPU longer to run them


class Prefill:
    """The host does not wait for any of it, and no library makes plans: whatever the prompts, the shapes are few.

    One attention serves prompts of all lengths. On a GPU pads fill the row up, and a short one is one replay.
    """

    def __init__(self, model: Model, kv: KVPool, config: EngineConfig) -> None:
        self.model, self.kv = model, kv
        self.attention = prompt_attention_for(model, kv)
        self.pads = pads_for(model, kv)
        self.graphs = self.graphs_of(config)  # by their number of rows

    def graphs_of(self, config: EngineConfig) -> dict[int, PromptGraph]:
        """Graphs of short prefills, where all of them can be alike."""
        alike = isinstance(self.attention, VarlenAttention) and isinstance(self.pads, Pads)
        return prompt_graphs(self.compute, self.kv, config, CUDAGraphs()) if alike else {}

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """Logits [B, vocab_size] for the token after each session's last."""
        num_tokens = sum(len(session.token_ids) - session.num_cached_tokens for session in sessions)
        tokens = PromptTokens(self.kv, [*sessions, *self.pads(num_tokens)])
        graph = self.graphs.get(len(tokens.token_ids))
        if graph is None or any(cached for cached, _ in tokens.lengths):
            return self.compute(tokens, tokens.last_rows[: len(sessions)])
        return graph(tokens, len(sessions))

    def compute(self, tokens: Tokens, rows: torch.Tensor) -> torch.Tensor:
        """Logits [number of rows, vocab_size] for the token after each of these rows of the tokens."""
        attention = self.attention.plan(tokens)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self.kv.write_tokens(layer_idx, tokens.blocks[layer_idx], tokens.slots, k, v)
            return attention(layer_idx, q, k, v)

        hidden = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(hidden[rows])


# -- the tokens -----------------------------------------------------------------------------------------------------


class Tokens(Protocol):
    """What a prefill has to know of its N tokens and of the sequences that they are of."""

    lengths: list[tuple[int, int]]
    token_ids: Tensor
    positions: Tensor
    last_rows: Tensor
    tables: Tensor
    blocks: Tensor
    slots: Tensor


class PromptTokens:
    """N tokens to compute, of B sessions. The first `num_cached_tokens` of each (a prefix hit) are not among them.

    lengths: for each session, tokens that the cache has and tokens to compute. Their index tensors go to the device
    without waiting, as those of the decode step do.
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


def pads_for(model: Model, kv: KVPool) -> Callable[[int], list[Pad]]:
    """What makes the pads of a prefill of so many tokens. There are none on a CPU, whose library takes no such time.

    Nor for a cache without a block for pads.
    """
    return Pads(model, kv) if kv.device.type == "cuda" and kv.spare_blocks else no_pads


def no_pads(num_tokens: int) -> list[Pad]:
    """Nothing to add."""
    return []


class Pads:
    """Fills a prefill up to one of few sizes. What the pads compute goes to the cache's block for pads."""

    def __init__(self, model: Model, kv: KVPool, size: Callable[[int], int] = pad_to_bucket) -> None:
        """kv: with a block that no session can hold, number `num_blocks` (lesson 066). size: of a prefill."""
        self.size = size
        self.longest = min(kv.block_size, model.shape.context)
        self.block = kv.num_blocks

    def __call__(self, num_tokens: int) -> list[Pad]:
        """Prompts of a block or less, that make `num_tokens` up to a size."""
        missing = self.size(num_tokens) - num_tokens
        full, rest = divmod(missing, self.longest)
        lengths = [self.longest] * full + [rest] * (rest > 0)
        return [Pad([0] * length, [self.block]) for length in lengths]


# -- attention ------------------------------------------------------------------------------------------------------


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

        return VarlenAttention(kv, heads, varlen_attn)
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
        qkv = [q[group.rows], k[group.rows], v[group.rows]]
        q, k, v = [x.unflatten(0, (-1, group.new)).transpose(1, 2) for x in qkv]  # [members, H or H_kv, new, D]
        mask = None
        if group.cached:
            total = group.cached + group.new
            table = tables[group.members, : -(-total // self.kv.block_size)]
            k, v = (
                cache[table].transpose(1, 2).flatten(2, 3)[:, :, :total]  # [members, H_kv, total, D]
                for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
            )
            mask = torch.ones(group.new, total, dtype=torch.bool, device=q.device).tril(diagonal=group.cached)
        if self.heads_per_kv_head > 1:
            k, v = for_query_heads(k, self.heads_per_kv_head), for_query_heads(v, self.heads_per_kv_head)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(0, 1)


class VarlenAttention:
    """One call for prompts of any lengths, FlashAttention's for sequences of variable length, which needs no plan.

    varlen: `torch.nn.attention.varlen.varlen_attn`, or what computes the same.
    """

    def __init__(self, kv: KVPool, heads_per_kv_head: int, varlen: Callable[..., Any]) -> None:
        self.kv, self.heads_per_kv_head, self.varlen = kv, heads_per_kv_head, varlen

    def plan(self, tokens: Tokens) -> Attention:
        """See `PromptAttention`."""
        totals = [cached + new for cached, new in tokens.lengths]
        cu_seqlens_q = F.pad(tokens.last_rows + 1, (1, 0)).int()  # [B + 1], where each session's rows begin and end
        max_seqlen_q = max(new for _, new in tokens.lengths)
        cached = any(cached for cached, _ in tokens.lengths)
        cu_seqlens_k, blocks, slots = self._of_all(tokens, totals) if cached else (cu_seqlens_q, None, None)

        def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if blocks is not None:
                k, v = (
                    cache[blocks[layer_idx], :, slots]  # [sum of totals, H_kv, D]
                    for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx])
                )
            k, v = (for_query_heads(x, self.heads_per_kv_head) for x in (k, v))
            return self.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max(totals), window_size=CAUSAL)

        return attention

    def _of_all(self, tokens: Tokens, totals: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Where the K and V of each session begin and end in a flat row, and where each lies in the cache."""
        device = self.kv.device
        session_of = [b for b, total in enumerate(totals) for _ in range(total)]
        positions = [p for total in totals for p in range(total)]
        owner, position = index_tensor([session_of, positions], device)
        cu_seqlens_k = index_tensor([0, *accumulate(totals)], device).int()
        return cu_seqlens_k, tokens.tables[:, owner, position // self.kv.block_size], position % self.kv.block_size


def for_query_heads(x: Tensor, times: int) -> Tensor:
    """Each head of K or V, dimension 1 of x, once for each query head that reads it; x where that is one."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


# -- graphs ---------------------------------------------------------------------------------------------------------


class TokensInPlace:
    """Prompt tokens in memory that stays where it is: as many rows as a graph has, and as many sequences.

    Sequences that are not there have no rows. The length stands for the longest that there can be. No prefix is cached.
    """

    def __init__(self, kv: KVPool, size: int) -> None:
        numbers = torch.zeros(5, size, dtype=torch.int64, device=kv.device)
        self.token_ids, self.positions, self.last_rows, block, self.slots = numbers.unbind()
        block.fill_(kv.num_blocks)  # of pads, until there are tokens
        self.blocks = block.expand(kv.num_layers, -1)  # [L, size]: a prefill with pads has one table for all layers
        self.tables = self.blocks[..., None]
        self.lengths = [(0, size)]

    def take(self, tokens: PromptTokens) -> None:
        """Copy tokens here, on the device: as many as there are rows."""
        for mine, theirs in zip(self._numbers(self), self._numbers(tokens), strict=True):
            mine.copy_(theirs)
        self.last_rows.fill_(len(self.token_ids) - 1)
        self.last_rows[: len(tokens.last_rows)].copy_(tokens.last_rows)

    @staticmethod
    def _numbers(tokens: Tokens) -> tuple[Tensor, ...]:
        return tokens.token_ids, tokens.positions, tokens.blocks[0], tokens.slots


class PromptGraph:
    """A prefill of so many rows, whatever prompts they are of: one replay."""

    def __init__(self, compute: Compute, kv: KVPool, size: int, graph: Graph) -> None:
        self.tokens, self.graph = TokensInPlace(kv, size), graph

        def run() -> None:  # its outcome is kept: no other graph gets that memory
            self.logits = compute(self.tokens, self.tokens.last_rows)

        graph.warm_up(run)
        graph.capture(run)

    def __call__(self, tokens: PromptTokens, num_sessions: int) -> Tensor:
        """Logits [num_sessions, vocab_size] of the first sequences, for whoever calls to keep."""
        self.tokens.take(tokens)
        self.graph.replay()
        return self.logits[:num_sessions].clone()  # the next replay writes over them


def prompt_graphs(
    compute: Compute, kv: KVPool, config: EngineConfig, new_graph: Callable[[], Graph]
) -> dict[int, PromptGraph]:
    """A graph for each size that prefills of this engine can have, up to `MOST` rows; none where a capture fails.

    compute: `compute(tokens, rows)` are the logits of these rows of the tokens. The largest is captured first: the
    others fit into its memory.
    """
    most = pad_to_bucket(min(MOST, config.max_batch_size * (config.max_seq_len or MOST)))
    graphs: dict[int, PromptGraph] = {}
    try:
        with torch.inference_mode():
            for size in range(most, 0, -LEAST):
                graphs[size] = PromptGraph(compute, kv, size, new_graph())
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        warnings.warn(f"no graph of a prefill of {size} tokens, so they run eagerly: {first_line}", stacklevel=2)
        return {}
    return graphs
