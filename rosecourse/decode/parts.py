"""The replaceable parts of a decode step.

An engine builds each part once, as `part(model, kv, config)` where nothing else is said. B: sessions in the step; L:
layers; H: heads of K and V; D: their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from ..checks import require
from .fill import FillStep

# append(layer_idx, k, v) writes the new tokens' K and V [B, H, D] of one layer.
Append = Callable[[int, Tensor, Tensor], None]
Part = Callable[..., Any]


class Mailbox(Protocol):
    """Where tokens lie until somebody reads them: `put` wakes nobody, `wake` lets a reader look that sleeps."""

    def put(self, item: Any) -> None: ...
    def wake(self) -> None: ...


@dataclass(frozen=True)
class DecodeParts:
    """What an engine's decode step is made of, from the ground up; a rung of the ladder replaces one or more.

    cache: a class of caches, such as `kv.blocks.KVBlockManager`, made with its sizes by name.
    step: a whole decode step, made as `step(parts, model, kv, config)`; it builds the parts that it calls. `step(
    sessions)` gives logits [B, vocab_size] for one more token of each, `choose(sessions, logits)` the tokens, or raises
    `LogitsError`. `stages` names the attributes that a stopwatch or a counter may wrap.
    block_tables: `block_tables(sessions)` is int32 [L, B, max_blocks] on the device, 0 past a session's last block.
    forward: up to lesson 062 `forward(inputs)` gives `DecodeOutputs`, whose K and V are not in the cache yet. From 063
    on `forward(inputs, append)` gives logits, and calls `append` once for each layer, or has attention that appends.
    kv_append: `kv_append(sessions, keys, values)`, for each layer [B, H, D], puts them where the next step looks, or
    raises `KVCacheExhausted`; it copies a block that others own too. From 063 on `kv_append(inputs)` makes the `Append`
    of a step, for which `place` has made room.
    copy_blocks: `copy_blocks(copies)` makes the copies of `kv.blocks.Copy` before anybody writes into them.
    rows, runner: what the device knows of the running sessions, and how the operations of a step get there.
    device_step: what the runner runs, made as `device_step(forward, kv_append, rows, best)`.
    pipeline: which batches are in flight, made as `pipeline(step, kv, config)`. One without `begin` leaves first tokens
    to the host.
    prefill: `prefill(sessions)` puts K and V of prompts into their blocks; returns logits [B, vocab_size].
    delivery: how tokens get to readers in other threads, made as `delivery(config)`.
    fill: `fill(num_decoding, prompts)` says how many tokens of each prompt a step computes beside so many sessions that
    decode, where the engine has a budget of tokens a step. Made as `fill(budget)`.
    ops: what the layers are computed with in the step, made as `ops(model, config)`; prompts take `models.ops`.

    None is a part that the step does without.
    """

    cache: Part
    step: Part
    block_tables: Part | None
    forward: Part
    kv_append: Part
    pipeline: Part
    prefill: Part
    delivery: Part
    ops: Part
    copy_blocks: Part | None = None
    rows: Part | None = None
    runner: Part | None = None
    device_step: Part | None = None
    fill: Part = FillStep

    def build(self, name: str, *arguments: Any) -> Any:
        """The part of this name. Raises `ConfigError` where a step asks for one that is not there."""
        part = getattr(self, name)
        require(part is not None, f"the step needs a part `{name}`, and there is none: give it, or another step")
        return part(*arguments)

    def with_(self, **parts: Any) -> DecodeParts:
        """Some replaced, as in `BASELINE.with_(kv_append=MyKVAppend)`."""
        return replace(self, **parts)
