"""Part `forward` before paged attention: K and V are gathered into dense tensors at each step, then attended to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from ..config import EngineConfig
from ..decode.inputs import DecodeInputs, DecodeOutputs
from ..models.shape import Model
from .l035_blocks import KVBlockManager


class DecodeForward:
    """Every step copies the whole context of every session, in every layer, session by session."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.kv = kv

    def __call__(self, inputs: DecodeInputs) -> DecodeOutputs:
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        position = torch.arange(inputs.max_context_len + 1, device=self.kv.device)
        mask = (position <= inputs.context_lens[:, None])[:, None, None]  # [B, 1, 1, T + 1]

        def attend(layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys.append(k)
            values.append(v)
            k_dense = self.gather(inputs, layer_idx, self.kv.k_layers[layer_idx], k)
            v_dense = self.gather(inputs, layer_idx, self.kv.v_layers[layer_idx], v)
            # The query heads that share a K and V head stand where sequences have their positions.
            grouped = q.unflatten(1, (k.shape[1], -1))  # [B, H_kv, G, D]
            return F.scaled_dot_product_attention(grouped, k_dense, v_dense, attn_mask=mask).flatten(1, 2)

        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, attend)
        return DecodeOutputs(self.model.logits(hidden), keys, values)

    def gather(self, inputs: DecodeInputs, layer_idx: int, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Each session's cached K or V and its new token's after them, padded with zeros: [B, H_kv, T + 1, D]."""
        rows = []
        for idx, session in enumerate(inputs.sessions):
            block_indices = [self.kv.block_index(block_id) for block_id in session.block_ids_per_layer[layer_idx]]
            dense = cache[block_indices].transpose(1, 2).flatten(0, 1)  # [blocks * block_size, H_kv, D]
            rows.append(torch.cat([dense[: session.num_cached_tokens], new[idx, None]]))
        return pad_sequence(rows, batch_first=True).transpose(1, 2)
