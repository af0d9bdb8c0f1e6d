"""The replaceable parts of a decode step: what each one promises.

An engine builds each part once, as `part(model, kv, config)`: kv is the cache that the parts are made for, and
`config` the engine's, with nothing left open. Every rung of the ladder that has a part calls it in the same way.
B: sessions in the step; L: layers; H: heads of K and V, which several query heads may share; D: their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..config import EngineConfig
from ..kv.layout import CacheLayout
from ..models.shape import Model
from ..request.session import InferenceSession
from .inputs import DecodeInputs, DecodeOutputs


class BlockTables(Protocol):
    """Where the blocks of each session lie, for attention to read."""

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        """int32 [L, B, max_blocks] on the device: the physical block of each logical one, 0 past the last."""
        ...


class Forward(Protocol):
    """The model over one token per session."""

    def __call__(self, inputs: DecodeInputs) -> DecodeOutputs:
        """Logits, and the K and V of each session's last token, which are not in the cache yet."""
        ...


class KVAppend(Protocol):
    """Puts the new tokens' K and V where the next step will look."""

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """Append one token to every session; keys, values: for each layer [B, H, D].

        Raises `KVCacheExhausted` where a session needs a block and none is free. A block that other sessions own too is
        copied before it is written.
        """
        ...


class Step(Protocol):
    """A whole decode step. It is built as `step(parts, model, kv, config)`, and builds the parts that it calls.

    stages: the names of those parts. Each is an attribute that can be called, and that a stopwatch or a counter may
    wrap for a while.
    """

    stages: tuple[str, ...]

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        """One more token for each session: logits [B, vocab_size]."""
        ...


class CacheFactory(Protocol):
    """A class of caches, such as `KVBlockManager`."""

    def __call__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> CacheLayout: ...


@dataclass(frozen=True)
class DecodeParts:
    """What an engine's decode step is made of, from the ground up; a rung of the ladder replaces one or more.

    cache: how the blocks of all layers are kept (`kv.layout.CacheLayout`).
    step: in which order the other parts are called (`Step`).
    block_tables, forward, kv_append: see `BlockTables`, `Forward` and `KVAppend`.
    """

    cache: CacheFactory
    step: Callable[[DecodeParts, Model, Any, EngineConfig], Step]
    block_tables: Callable[[Model, Any, EngineConfig], BlockTables]
    forward: Callable[[Model, Any, EngineConfig], Forward]
    kv_append: Callable[[Model, Any, EngineConfig], KVAppend]

    def with_(self, **parts: Any) -> DecodeParts:
        """The same parts with some replaced, such as `BASELINE.with_(kv_append=MyKVAppend)`."""
        return replace(self, **parts)
