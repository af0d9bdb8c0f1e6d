"""What the engine asks of a model: its sizes, and a forward pass that leaves attention to the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from ..checks import is_count, is_within, require, require_a

SIZE = (is_count, "1 or more")  # for `check_fields`
EPSILON = (lambda eps: is_within(eps, 0, 1), "0 to 1, such as 1e-5")

# attend(layer_idx, q, k, v) -> attention output, for N tokens in a flat row:
# q and the output are [N, num_heads, head_dim], k and v are [N, num_kv_heads, head_dim].
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Rotary(NamedTuple):
    """What becomes of the heads of q and k before they meet: an RMS norm of each head, and a turn by its position.

    Each number turns with the one half a head away. eps: of the norm.
    """

    rotations: torch.Tensor | None = None  # [context, 2, D / 2]: cos and sin of the angle of each position and pair
    gains: torch.Tensor | None = None  # [2, D], of q and of k
    eps: float = 0.0


@runtime_checkable
class ModelShape(Protocol):
    """The sizes of a model, each a whole number of 1 or more, and the shapes of its weights.

    num_heads: query heads of a layer; num_kv_heads, a divisor of that: K and V heads (`query_heads_per_kv_head`).
    head_dim: numbers in one head of a token's q, K or V. width: numbers that one layer hands to the next for a token.
    context: most tokens of a sequence, prompt and completion together.
    """

    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of each weight. A weight that is used in two places is listed once."""


@runtime_checkable
class Model(Protocol):
    """A model with its weights on one device in one dtype, which K and V have too, and its tokenizer.

    tokenizer: one of `transformers`; None serves an engine that is given token ids alone. name: as tables call it.
    """

    @property
    def shape(self) -> ModelShape: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def name(self) -> str: ...

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """All layers over N tokens; token_ids, positions: int64 [N]. Calls `attend` in each. Returns [N, width]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, width] to logits [N, vocab_size]."""


def query_heads_per_kv_head(num_heads: int, num_kv_heads: int) -> int:
    """The size G of a group in grouped-query attention (Ainslie et al., 2023): query head h reads K and V head h // G.

    Raises `ConfigError` unless the groups are equal.
    """
    require(
        num_heads % num_kv_heads == 0,
        f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly: give a multiple of {num_kv_heads}",
    )
    return num_heads // num_kv_heads


def require_model(model: Any) -> None:
    """Raise `ConfigError` unless the engine can run this model."""
    require_a(Model, model, "the model")
    shape = model.shape
    require_a(ModelShape, shape, "the shape of the model")
    query_heads_per_kv_head(shape.num_heads, shape.num_kv_heads)
    index = model.device.index  # kernels and threads take the first GPU
    ours = f"start Python with CUDA_VISIBLE_DEVICES={index}, and load it with device='cuda'"
    require(not index, f"the model is on {str(model.device)!r}, which is not the first GPU: {ours}")
