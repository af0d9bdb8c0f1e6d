"""The replaceable parts of a decode step: what each one promises.

An engine builds each part once, as `part(model, kv, config)`: kv is the cache that the parts are made for, and
`config` the engine's, with nothing left open. Every rung of the ladder that has a part calls it in the same way.
B: sessions in the step; L: layers; H: heads of K and V, which several query heads may share; D: their size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checks import require
from ..config import EngineConfig
from ..models.ops import Ops
from ..models.shape import Model
from ..request.session import InferenceSession
from .in_flight import StepInFlight
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


# append(layer_idx, k, v) writes the new tokens' K and V [B, H, D] of one layer.
Append = Callable[[int, Tensor, Tensor], None]


class KVAppendByTable(Protocol):
    """The append of lessons from 063 on, which is a part of the forward."""

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes K and V of the tokens at the positions `context_lens`, for which `place` has made room."""
        ...


class ForwardWithAppend(Protocol):
    """The model over one token per session, in the lessons from 063 on."""

    def __call__(self, inputs: DecodeInputs, append: Append) -> Tensor:
        """Logits [B, vocab_size]. Calls `append` once for each layer, or has attention that appends itself.

        What the operations of a model have made of logits may be known beside them (`five_kernels`), so change none in
        place: return others.
        """
        ...


class CopyBlocks(Protocol):
    """Copy-on-write, in the lessons from 063 on."""

    def __call__(self, copies: Sequence[Any]) -> None:
        """Copy blocks (`kv.blocks.Copy`), K and V of all layers, before anybody writes into the copies."""
        ...


class Rows(Protocol):
    """What the device knows of the running sessions, in the lessons from 064 on (`decode.rows.Rows`).

    sampling: whether any of them asks for more than the most probable token.
    """

    sampling: bool

    def plan(self, sessions: Sequence[InferenceSession]) -> DecodeInputs:
        """The inputs of a step, on the device; uploads what has changed since the last one."""
        ...

    def holds(self, sessions: Sequence[InferenceSession]) -> bool:
        """Whether these are the sessions of the last step, in its order."""
        ...

    def view(self, size: int) -> Any:
        """The first rows (`decode.rows.View`), which may be more than sessions sit in."""
        ...

    def all_pads(self) -> AbstractContextManager[None]:
        """For what may run over the rows without doing anything to the sessions that sit there."""
        ...

    def advance(self, size: int) -> None:
        """Every session of the first rows has one token more in the cache."""
        ...

    def asked(self, size: int) -> Any:
        """What sampling needs to know of the first rows (`decode.rows.Asked`)."""
        ...

    def chosen(self, size: int, tokens: Tensor) -> None:
        """These are the last tokens of the first rows: int64 [size] on the device, which the host has not read yet."""
        ...

    def unread(self) -> None:
        """The device has chosen tokens that the host has not read."""
        ...

    def read(self, token_ids: list[int]) -> None:
        """The host has read them."""
        ...

    def forget(self) -> None:
        """Nobody knows what is on the device: the next step uploads all that it needs."""
        ...


class DeviceStep(Protocol):
    """The device's part of a step, in the lessons from 066 on: a function of tensors that stay where they are.

    It is built as `device_step(forward, kv_append, rows, best)`. best: as for a `Runner`.
    """

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Any:
        """One more token for each row (`decode.device_step.Outcome`). sampled: whether any row is not greedy."""
        ...


class Runner(Protocol):
    """Brings the operations of a step to the device, in the lessons from 066 on.

    best: how the most probable tokens are found, by operations that the runner can run (`decode.sampling.Best`).
    """

    best: Any

    def start(self, work: Any) -> None:
        """Take the work (`decode.device_step.DeviceStep`), once, when the engine is built."""
        ...

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Any:
        """Run it over the rows of a step: logits and tokens (`decode.device_step.Outcome`), until the next run."""
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

    def choose(self, sessions: Sequence[InferenceSession], logits: Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step; it is not appended yet.

        Raises `LogitsError` for a row that no token can be chosen from.
        """
        ...


class Pipeline(Protocol):
    """Which steps are in flight: launched, and not read yet. It is built as `pipeline(step, kv, config)`.

    steps_ahead: how many may be when the host goes on to plan another one; 0 in the lessons up to 066.
    in_flight: those that are, the oldest first.
    """

    steps_ahead: int
    in_flight: deque[StepInFlight]

    def launch(self, sessions: Sequence[InferenceSession], user: Any) -> None:
        """Start a step of these sessions, for a user (the scheduler that is stepping)."""
        ...

    def land(self) -> tuple[StepInFlight, list[int]]:
        """Wait for the oldest step: it, and the token of each of its rows or `sampling.NO_TOKEN`.

        An interrupt comes before anything has changed.
        """
        ...

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. When it returns, the device writes nothing more for them."""
        ...


class Prefill(Protocol):
    """The prompts of requests."""

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        """Logits [B, vocab_size] for the token after each session's last; its K and V are in its blocks then."""
        ...


class Start(Protocol):
    """How the first token of a request gets to its first decode step. It is built as `start(step, pipeline)`."""

    def __call__(self, sessions: Sequence[InferenceSession], logits: Tensor, user: Any) -> list[int]:
        """Choose the first token of each session, by the logits [B, vocab_size] of its prefill.

        Returns the tokens, or NO_TOKEN for some; or nothing, and they are a step in flight of the pipeline. user: the
        scheduler that is stepping.
        """
        ...


class Mailbox(Protocol):
    """Where tokens lie until somebody reads them. See `request.mailbox`."""

    def put(self, item: Any) -> None:
        """Lay an item down; whoever sleeps goes on sleeping."""
        ...

    def wake(self) -> None:
        """Let the reader look, if it sleeps."""
        ...


class Delivery(Protocol):
    """How tokens get from the thread that steps to their readers. It is built as `delivery(config)`."""

    def hand_over(self, items: Sequence[tuple[Mailbox, Any]]) -> None:
        """What a step has made: each item for its mailbox, in order."""
        ...

    def flush(self) -> None:
        """No step will come soon: whoever has got something hears of it now."""
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
    ) -> Any: ...


@dataclass(frozen=True)
class DecodeParts:
    """What an engine's decode step is made of, from the ground up; a rung of the ladder replaces one or more.

    cache: how the blocks of all layers are kept (`kv.blocks.KVBlockManager`).
    step: in which order the other parts are called (`Step`).
    block_tables, forward, kv_append: see `BlockTables`, `Forward` and `KVAppend`; from lesson 063 on
    `ForwardWithAppend` and `KVAppendByTable`.
    pipeline: when the host reads what a step has made (`Pipeline`).
    ops: what the layers of the model are computed with in the step (`models.ops.Ops`); prompts take PyTorch's.
    prefill, start: how prompts are computed, and how their first tokens get into a step (`Prefill`, `Start`).
    delivery: how tokens get to readers in other threads (`Delivery`).
    copy_blocks, rows, runner: see `CopyBlocks`, `Rows` and `Runner`. None is a part that the step does without.
    device_step: what the runner runs (`DeviceStep`).
    """

    cache: CacheFactory
    step: Callable[[DecodeParts, Model, Any, EngineConfig], Step]
    block_tables: Callable[[Model, Any, EngineConfig], BlockTables] | None
    forward: Callable[[Model, Any, EngineConfig], Any]
    kv_append: Callable[[Model, Any, EngineConfig], Any]
    pipeline: Callable[[Any, Any, EngineConfig], Pipeline]
    prefill: Callable[[Model, Any, EngineConfig], Prefill]
    start: Callable[[Any, Any], Start]
    delivery: Callable[[EngineConfig], Delivery]
    ops: Callable[[Any, EngineConfig], Ops]
    copy_blocks: Callable[[Model, Any, EngineConfig], CopyBlocks] | None = None
    rows: Callable[[Model, Any, EngineConfig], Rows] | None = None
    runner: Callable[[Model, Any, EngineConfig], Runner] | None = None
    device_step: Callable[[Any, Any, Any, Any], DeviceStep] | None = None

    def build(self, name: str, model: Model, kv: Any, config: EngineConfig) -> Any:
        """The part of this name, for an engine. Raises `ConfigError` where a step asks for one that is not there."""
        return self.part(name)(model, kv, config)

    def part(self, name: str) -> Callable[..., Any]:
        """The part of this name, not built yet. Raises as `build`."""
        part = getattr(self, name)
        require(part is not None, f"the step needs a part `{name}`, and there is none: give it, or another step")
        return part

    def with_(self, **parts: Any) -> DecodeParts:
        """The same parts with some replaced, such as `BASELINE.with_(kv_append=MyKVAppend)`."""
        return replace(self, **parts)
