"""GPT-2: the forward pass alone, with tokens in one flat row and attention left to the caller.

The same few lines serve prefill (the tokens of all prompts, one after another) and decode (one token per session). The
two differ only in `attend`, which knows where earlier keys and values are.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checks import is_count, is_within, shown
from ..errors import ModelError
from .ops import LayerOps, Linear, Norm, Ops, Stream
from .shape import Attend

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
        for name in ("vocab_size", "context", "width", "num_layers", "num_heads"):
            if not is_count(getattr(self, name)):
                raise ModelError(f"a GPT-2 of {name} {shown(getattr(self, name))}: give 1 or more")
        if self.width % self.num_heads:
            raise ModelError(f"a GPT-2 of width {self.width} cannot have {self.num_heads} heads: give a divisor")
        if not is_within(self.layer_norm_eps, 0, 1):
            raise ModelError(f"a GPT-2 of layer_norm_eps {shown(self.layer_norm_eps)}: give 0 to 1, such as 1e-5")

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


class GPT2:
    """A GPT-2 with its weights, on one device in one dtype, and its tokenizer.

    weights: the Hugging Face names without the `transformer.` prefix, see `GPT2Shape.parameters`.
    """

    def __init__(self, shape: GPT2Shape, weights: Mapping[str, torch.Tensor], tokenizer: Any, name: str) -> None:
        self.shape = shape
        self.weights = dict(weights)
        self.tokenizer = tokenizer
        self.name = name
        # The token ids that end a text, as `transformers` has them, and the folder that the weights come from.
        self.eos_token_id: int | list[int] | None = getattr(tokenizer, "eos_token_id", None)
        self.folder: Path | None = None
        self.wte, self.wpe = weights["wte.weight"], weights["wpe.weight"]
        self.layers = [GPT2Layer(weights, f"h.{i}.", shape) for i in range(shape.num_layers)]
        self.ln_f = Norm(weights["ln_f.weight"], weights["ln_f.bias"], shape.layer_norm_eps)
        self.ops: Ops = LayerOps()
        self.dtype, self.device = self.wte.dtype, self.wte.device

    def with_ops(self, ops: Ops) -> GPT2:
        """The same model, with the same weights, computed with these operations."""
        model = copy(self)
        model.ops = ops
        return model

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> Stream:
        """token_ids, positions: int [N]. Returns [N, C], the output of the last layer for each token."""
        x = self.ops.embed(token_ids, positions, self.wte, self.wpe)
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend, self.ops)
        return x

    def logits(self, hidden: Stream) -> torch.Tensor:
        """hidden [N, C] to logits [N, vocab_size]; the output projection is the token embedding."""
        return self.ops.logits(hidden, self.ln_f, self.wte)
