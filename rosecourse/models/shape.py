"""What the engine asks of a model: its sizes, and a forward pass that leaves attention to the caller.

The engine, the parts of the decode step, the cache, the kernels and the floor know these protocols and no class of
model. A second family needs a class with these names, and an entry in `load.LOADERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from ..checks import is_count, require, shown

# attend(layer_idx, q, k, v) -> attention output, for N tokens in a flat row:
# q and the output are [N, num_heads, head_dim], k and v are [N, num_kv_heads, head_dim].
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Rotary(NamedTuple):
    """What becomes of the heads of q and k before they meet: an RMS norm of each head, and a turn by its position.

    Each number turns with the one half a head away. None is none of that. eps: of the norm.
    """

    rotations: torch.Tensor | None = None  # [context, 2, D / 2]: cos and sin of the angle of each position and pair
    gains: torch.Tensor | None = None  # [2, D], of q and of k
    eps: float = 0.0


class ModelShape(Protocol):
    """The sizes of a model, each a whole number of 1 or more, and the shapes of its weights."""

    @property
    def num_layers(self) -> int:
        """Transformer layers; the cache keeps K and V for each of them."""

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""

    @property
    def num_kv_heads(self) -> int:
        """K and V heads of a layer, a divisor of `num_heads`. See `query_heads_per_kv_head`."""

    @property
    def head_dim(self) -> int:
        """Numbers in one head of a token's q, K or V."""

    @property
    def width(self) -> int:
        """Numbers that one layer hands to the next for each token."""

    @property
    def context(self) -> int:
        """The most tokens that a sequence can have, prompt and completion together."""

    @property
    def vocab_size(self) -> int:
        """Logits for each token; token ids are 0 to `vocab_size - 1`."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each weight. A weight that is used in two places is listed once."""


class Model(Protocol):
    """A model with its weights on one device in one dtype, and its tokenizer."""

    @property
    def shape(self) -> ModelShape:
        """Its sizes."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights, and of K and V in the cache."""

    @property
    def device(self) -> torch.device:
        """Where its weights are, and where the cache goes."""

    @property
    def tokenizer(self) -> Any:
        """A tokenizer of `transformers`; an engine that is given token ids alone does without one (None)."""

    @property
    def name(self) -> str:
        """What tables and recorded files call it."""

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """All layers over N tokens of any sessions; token_ids and positions are int64 [N].

        Calls `attend` once for each layer, in order. Returns [N, width], the output of the last layer.
        """

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, width] to logits [N, vocab_size]."""


def query_heads_per_kv_head(num_heads: int, num_kv_heads: int) -> int:
    """The size of a group in grouped-query attention (Ainslie et al., 2023): 1 where every query head has its own K, V.

    With groups of size G, query head h reads K and V head h // G. Raises `ConfigError` unless the groups are equal.
    """
    require(
        num_heads % num_kv_heads == 0,
        f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly: give a multiple of {num_kv_heads}",
    )
    return num_heads // num_kv_heads


def require_model(model: Any) -> None:
    """Raise `ConfigError` unless the engine can run this model. The message names what is missing or wrong."""
    _require_members(Model, model, "the model")
    shape = model.shape
    _require_members(ModelShape, shape, "the shape of the model")
    for name, member in _members(ModelShape).items():
        if isinstance(member, property):
            size = getattr(shape, name)
            require(is_count(size), f"{name} of the model is {shown(size)}: give 1 or more")
    query_heads_per_kv_head(shape.num_heads, shape.num_kv_heads)
    index = model.device.index  # kernels and threads take the first GPU
    ours = f"start Python with CUDA_VISIBLE_DEVICES={index}, and load it with device='cuda'"
    require(not index, f"the model is on {str(model.device)!r}, which is not the first GPU: {ours}")


def _require_members(protocol: type, value: object, name: str) -> None:
    missing = next((member for member in _members(protocol) if not hasattr(value, member)), None)
    wanted = f"give an object of type {protocol.__name__}"
    require(missing is None, f"{name} is {shown(value)}: {wanted}, this one has no {missing!r}")


def _members(protocol: type) -> dict[str, Any]:
    """The properties and methods that a protocol asks for, by name."""
    return {name: member for name, member in vars(protocol).items() if not name.startswith("_")}
