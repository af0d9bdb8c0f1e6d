"""The Llama family: RMS norm, rotary positions, a gated MLP, and query heads that share K and V heads.

Llama, Qwen2, Qwen3 and SmolLM3 differ in a few sizes and switches, which `LlamaShape` has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_fields
from ..errors import ConfigError
from .ops import GatedLinear, Linear, Norm, Ops, Stream, Transformer
from .shape import EPSILON, SIZE, Attend, Rotary

SIZES = ("vocab_size", "context", "width", "inner", "num_layers", "num_heads", "num_kv_heads", "head_dim")


@dataclass(frozen=True)
class Llama3Scaling:
    """How Llama 3.1 stretches positions: slow rotations by `factor`, fast ones not. (arxiv.org/abs/2407.21783, 3.4)"""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __call__(self, frequencies: Tensor) -> Tensor:
        """frequencies, and what they become: float32 [D / 2]."""
        turns = self.original_context * frequencies / (2 * math.pi)  # within the context of before
        fast = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - fast) * frequencies / self.factor + fast * frequencies


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a model of the family, as `ModelShape` names them, and what its members differ in.

    inner: numbers in the middle of the MLP. without_rope: the layers without rotary positions (SmolLM3). tied: whether
    the output projection is the token embedding. qkv_bias, out_bias, mlp_bias: of the linear maps. qk_norm: whether
    each head of q and k has an RMS norm (Qwen3).
    """

    vocab_size: int
    context: int
    width: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Scaling | None = None
    without_rope: frozenset[int] = frozenset()
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(self, **dict.fromkeys(SIZES, SIZE), norm_eps=EPSILON)
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ConfigError(
                f"a Llama cannot have {self.num_heads} query heads over {self.num_kv_heads} KV heads of size "
                f"{self.head_dim}: give a multiple, and an even size"
            )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each parameter, as in the Hugging Face format (weights of linear maps are [out, in])."""
        C, q, kv = self.width, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        maps = {  # outputs, inputs, and whether there is a bias
            "self_attn.q_proj": (q, C, self.qkv_bias),
            "self_attn.k_proj": (kv, C, self.qkv_bias),
            "self_attn.v_proj": (kv, C, self.qkv_bias),
            "self_attn.o_proj": (C, q, self.out_bias),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (self.inner, C, self.mlp_bias)),
            "mlp.down_proj": (C, self.inner, self.mlp_bias),
        }
        norms = {"input_layernorm": C, "post_attention_layernorm": C}
        norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim} if self.qk_norm else {}
        shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (self.vocab_size, C)}
        for i in range(self.num_layers):
            for name, (outputs, inputs, biased) in maps.items():
                shapes[f"layers.{i}.{name}.weight"] = outputs, inputs
                shapes |= {f"layers.{i}.{name}.bias": (outputs,)} if biased else {}
            shapes |= {f"layers.{i}.{name}.weight": (size,) for name, size in norms.items()}
        shapes["norm.weight"] = (C,)
        return shapes if self.tied else shapes | {"lm_head.weight": (self.vocab_size, C)}

    def rotations(self, device: torch.device | str = "cpu") -> Tensor:
        """cos and sin of the angle of each position and each pair of numbers of a head: float32 [context, 2, D / 2]."""
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        frequencies = 1.0 / self.rope_theta**pairs
        if self.rope_scaling is not None:
            frequencies = self.rope_scaling(frequencies)
        angles = torch.arange(self.context).float()[:, None] * frequencies
        return torch.stack([angles.cos(), angles.sin()], 1).to(device)


class Turn:
    """Turns each pair of numbers, i and i + D / 2 of a head, by its angle. (RoFormer, https://arxiv.org/abs/2104.09864)

    rotations: [N, 2, D / 2], of the tokens' positions, see `LlamaShape.rotations`.
    """

    def __init__(self, rotations: Tensor) -> None:
        self.cos, sin = rotations[:, None].split(1, 2)  # [N, 1, 1, D / 2]
        self.sin = torch.cat([-sin, sin], 2)  # of the first half and of the second

    def __call__(self, x: Tensor) -> Tensor:
        """x: [N, heads, D]."""
        halves = x.unflatten(-1, (2, -1))
        return torch.addcmul(halves * self.cos, halves.flip(2), self.sin).flatten(2)


class LlamaLayer:
    """One layer. The maps that read the same input are one map; their `weights` become views of it."""

    def __init__(self, weights: dict[str, Tensor], number: int, shape: LlamaShape, rotations: Tensor) -> None:
        def norm(name: str) -> Norm:
            return Norm(weights[f"layers.{number}.{name}.weight"], None, shape.norm_eps)

        def linear(*names: str, kind: type[Linear] = Linear) -> Linear:
            names = tuple(f"layers.{number}.{name}" for name in names)
            bias = joined([f"{name}.bias" for name in names]) if f"{names[0]}.bias" in weights else None
            return kind(joined([f"{name}.weight" for name in names]).T, bias)

        def joined(names: list[str]) -> Tensor:
            if len(names) == 1:
                return weights[names[0]]
            whole = torch.cat([weights[name] for name in names])
            weights.update(zip(names, whole.split([len(weights[name]) for name in names]), strict=True))
            return whole

        self.attention_norm, self.mlp_norm = norm("input_layernorm"), norm("post_attention_layernorm")
        self.qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out = linear("self_attn.o_proj")
        self.gate_up = linear("mlp.gate_proj", "mlp.up_proj", kind=GatedLinear)
        self.down, self.shape = linear("mlp.down_proj"), shape
        names = [f"layers.{number}.self_attn.{part}_norm.weight" for part in "qk"]
        gains = torch.stack([weights[name] for name in names]) if shape.qk_norm else None
        turns = None if number in shape.without_rope else rotations
        self.rotary = Rotary(turns, gains, shape.norm_eps if shape.qk_norm else 0.0)
        self.heads = shape.num_heads, shape.num_kv_heads

    def __call__(self, x: Stream, layer_idx: int, attend: Any, turn: Turn | None, ops: Ops) -> Stream:
        """turn: of the tokens' positions; None leaves q and k to `attend`."""
        qkv, (H, H_kv) = ops.norm_linear(x, self.attention_norm, self.qkv), self.heads
        heads = qkv.view(len(qkv), -1, self.shape.head_dim)  # [N, H + 2 H_kv, D]
        qk, v = heads[:, :-H_kv], heads[:, -H_kv:]
        qk, more = (qk, [self.rotary]) if turn is None else (self.turned(qk, turn), [])
        h = attend(layer_idx, qk[:, :H], qk[:, H:], v, *more)
        x = ops.linear_add(h.flatten(1), self.out, x)
        return ops.linear_add(ops.norm_linear(x, self.mlp_norm, self.gate_up), self.down, x)

    def turned(self, qk: Tensor, turn: Turn) -> Tensor:
        """The heads of q and k as they meet: what `Rotary` says."""
        turns, gains, eps = self.rotary
        if gains is not None:
            parts = zip(qk.split(self.heads, 1), gains, strict=True)
            qk = torch.cat([F.rms_norm(x, gain.shape, gain, eps) for x, gain in parts], 1)
        return qk if turns is None else turn(qk)


class Llama(Transformer):
    """A model of the family."""

    def __init__(self, shape: LlamaShape, weights: Mapping[str, Tensor], tokenizer: Any, name: str) -> None:
        super().__init__(shape, dict(weights), tokenizer, name)
        self.embedding = self.weights["embed_tokens.weight"]
        self.head = self.embedding if shape.tied else self.weights["lm_head.weight"]
        self.norm = Norm(self.weights["norm.weight"], None, shape.norm_eps)
        self.rotations = shape.rotations(self.device).to(self.dtype)
        self.layers = [LlamaLayer(self.weights, i, shape, self.rotations) for i in range(shape.num_layers)]

    def products(self) -> Iterator[tuple[Norm | None, Linear | Tensor]]:
        """The weights of each product, and the norm before it, if any, in the order of a forward."""
        for layer in self.layers:
            yield from ((layer.attention_norm, layer.qkv), (None, layer.out))
            yield from ((layer.mlp_norm, layer.gate_up), (None, layer.down))
        yield self.norm, self.head

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Stream:
        """As `GPT2.hidden`; an `attend` with `takes_rotary` gets q and k as the products make them, and `Rotary`."""
        x = self.ops.embed(token_ids, positions, self.embedding, None)
        turn = None if getattr(attend, "takes_rotary", False) else Turn(self.rotations[positions])
        for layer_idx, layer in enumerate(self.layers):
            x = layer(x, layer_idx, attend, turn, self.ops)
        return x

    def logits(self, hidden: Stream) -> Tensor:
        """hidden [N, width] to logits [N, vocab_size]."""
        return self.ops.logits(hidden, self.norm, self.head)
