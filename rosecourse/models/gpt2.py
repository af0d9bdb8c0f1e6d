"""GPT-2: the forward pass alone, with tokens in one flat row; where earlier keys and values are, `attend` knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..checks import check_fields
from ..errors import ConfigError
from .ops import Linear, Norm, Ops, Stream, Transformer
from .shape import EPSILON, SIZE, Attend

# The norms and linear maps of a layer, and the sizes of their weights in widths of the model.
LAYER = {"ln_1": (1,), "attn.c_attn": (1, 3), "attn.c_proj": (1, 1)}
LAYER |= {"ln_2": (1,), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}


@dataclass(frozen=True)
class GPT2Shape:
    """The sizes of a GPT-2, as `ModelShape` names them."""

    vocab_size: int
    context: int  # positions that the model knows
    width: int
    num_layers: int
    num_heads: int
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "context", "width", "num_layers", "num_heads")
        check_fields(self, **dict.fromkeys(sizes, SIZE), layer_norm_eps=EPSILON)
        if self.width % self.num_heads:
            raise ConfigError(f"a GPT-2 of width {self.width} cannot have {self.num_heads} heads: give a divisor")

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, as in the Hugging Face format (Conv1D weights are [in, out])."""
        C = self.width
        shapes: dict[str, tuple[int, ...]] = {"wte.weight": (self.vocab_size, C), "wpe.weight": (self.context, C)}
        for i in range(self.num_layers):
            for name, sizes in LAYER.items():
                shapes[f"h.{i}.{name}.weight"] = tuple(size * C for size in sizes)
                shapes[f"h.{i}.{name}.bias"] = (sizes[-1] * C,)
        return shapes | {"ln_f.weight": (C,), "ln_f.bias": (C,)}


class GPT2Layer:
    """The weights of one transformer layer; names as in the Hugging Face format, with `_` for `.`."""

    def __init__(self, weights: Mapping[str, torch.Tensor], prefix: str, shape: GPT2Shape) -> None:
        def norm(name: str) -> Norm:
            return Norm(weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"], shape.layer_norm_eps)

        def linear(name: str) -> Linear:
            return Linear(weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"])

        self.ln_1, self.attn_c_attn, self.attn_c_proj = norm("ln_1"), linear("attn.c_attn"), linear("attn.c_proj")
        self.ln_2, self.mlp_c_fc, self.mlp_c_proj = norm("ln_2"), linear("mlp.c_fc"), linear("mlp.c_proj")
        self.shape = shape

    def __call__(self, x: Stream, layer_idx: int, attend: Attend, ops: Ops) -> Stream:
        qkv = ops.norm_linear(x, self.ln_1, self.attn_c_attn)  # [N, 3 C]
        q, k, v = qkv.view(-1, 3, self.shape.num_heads, self.shape.head_dim).unbind(1)  # views [N, H, D]
        h = attend(layer_idx, q, k, v).reshape(-1, self.shape.width)
        x = ops.linear_add(h, self.attn_c_proj, x)
        h = ops.norm_linear_gelu(x, self.ln_2, self.mlp_c_fc)  # [N, 4 C]
        return ops.linear_add(h, self.mlp_c_proj, x)


class GPT2(Transformer):
    """A GPT-2."""

    def __init__(self, shape: GPT2Shape, weights: Mapping[str, torch.Tensor], tokenizer: Any, name: str) -> None:
        super().__init__(shape, dict(weights), tokenizer, name)
        self.wte, self.wpe = weights["wte.weight"], weights["wpe.weight"]
        self.layers = [GPT2Layer(weights, f"h.{i}.", shape) for i in range(shape.num_layers)]
        self.ln_f = Norm(weights["ln_f.weight"], weights["ln_f.bias"], shape.layer_norm_eps)

    def products(self) -> Iterator[tuple[Norm | None, Linear | torch.Tensor]]:
        """The weights of each product, and the norm before it, if any, in the order of a forward."""
        for layer in self.layers:
            yield from ((layer.ln_1, layer.attn_c_attn), (None, layer.attn_c_proj))
            yield from ((layer.ln_2, layer.mlp_c_fc), (None, layer.mlp_c_proj))
        yield self.ln_f, self.wte

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Stream:
        """token_ids, positions: int [N]. Returns [N, C], the output of the last layer for each token."""
        x = self.ops.embed(token_ids, positions, self.wte, self.wpe)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend, self.ops)
        return x

    def logits(self, hidden: Stream) -> torch.Tensor:
        """hidden [N, C] to logits [N, vocab_size]; the output projection is the token embedding."""
        return self.ops.logits(hidden, self.ln_f, self.wte)
