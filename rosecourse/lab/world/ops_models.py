"""Small models in which operations are tried: of any sizes, and also such as GPT-2 is not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...models.gpt2 import GPT2, GPT2Shape
from ...models.ops import Stream
from ...models.shape import Attend
from .pool import Sizes


class ParallelGPT2(GPT2):
    """Attention and the product with GELU read the same stream, each through a norm of its own; then both are added
    (GPT-J and Falcon are like that)."""

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Stream:
        x = self.ops.embed(token_ids, positions, self.wte, self.wpe)
        for layer_idx, layer in enumerate(self.layers):
            qkv = self.ops.norm_linear(x, layer.ln_1, layer.attn_c_attn)
            q, k, v = qkv.view(-1, 3, self.shape.num_heads, self.shape.head_dim).unbind(1)
            h = self.ops.norm_linear_gelu(x, layer.ln_2, layer.mlp_c_fc)
            x = self.ops.linear_add(attend(layer_idx, q, k, v).reshape(-1, self.shape.width), layer.attn_c_proj, x)
            x = self.ops.linear_add(h, layer.mlp_c_proj, x)
        return x


class EmbeddingAlone(GPT2):
    """The logits are those of the embedding: no layer adds anything."""

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Stream:
        return self.ops.embed(token_ids, positions, self.wte, self.wpe)


@dataclass(frozen=True)
class ModelSizes(Sizes):
    """The same with a model. eps: of its norms. kind: how its layers are joined. mean: of a row that a norm reads."""

    vocab_size: int = 97
    eps: float = 1e-5
    kind: type[GPT2] = GPT2
    mean: float = 0.0

    def model(self) -> GPT2:
        """A model of these sizes with weights of its own, seeded."""
        shape = GPT2Shape(
            vocab_size=self.vocab_size,
            context=self.max_seq_len,
            width=self.heads * self.head_dim,
            num_layers=self.layers,
            num_heads=self.heads,
            layer_norm_eps=self.eps,
        )
        generator = torch.Generator().manual_seed(self.seed)
        weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in shape.parameters().items()}
        weights["wpe.weight"] += self.mean
        return self.kind(shape, {name: w.to(self.dtype).to(self.device) for name, w in weights.items()}, None, "random")
