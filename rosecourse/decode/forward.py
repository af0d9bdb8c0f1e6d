"""Part `forward`: the model over one token per session, with paged attention, which may append K and V itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..config import EngineConfig
from ..kernels import (
    AppendingAttention,
    PagedAttention,
    appending_attention_for,
    attention_after_append_for,
    triton_runs_on,
)
from ..kv.blocks import KVBlockManager
from ..kv.pool import KVPool
from ..models.shape import Attend, Model
from .inputs import DecodeInputs
from .parts import Append


class AppendFirst:
    """One operation writes K and V of a layer, and another one attends."""

    def __init__(self, attention: PagedAttention) -> None:
        self.attention = attention

    def __call__(self, inputs: DecodeInputs, append: Append) -> Attend:
        self.attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            append(layer_idx, k, v)
            return self.attention.run(layer_idx, q, k, v)

        return attend


class AppendWithin:
    """The kernel that attends has the new K and V in its registers: it writes them, too."""

    def __init__(self, attention: AppendingAttention) -> None:
        self.attention = attention

    def __call__(self, inputs: DecodeInputs, append: Append) -> Attend:
        """Attention of one step."""
        self.attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)
        return self.attention


def attend_for(
    kv: KVPool, num_heads: int, appending: Callable[[KVPool], AppendingAttention]
) -> Callable[[DecodeInputs, Append], Attend]:
    """The way for the device of a cache. num_heads: of q. appending: makes attention that appends, for a GPU."""
    if kv.device.type == "cuda" and triton_runs_on(kv.device):
        return AppendWithin(appending(kv))
    return AppendFirst(attention_after_append_for(kv, num_heads))


class DecodeForward:
    """On a GPU attention writes the new K and V into the cache, too; elsewhere that is an operation of its own."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.attend = attend_for(kv, model.shape.num_heads, appending_attention_for)

    def __call__(self, inputs: DecodeInputs, append: Append) -> torch.Tensor:
        attend = self.attend(inputs, append)
        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return self.model.logits(hidden)
