"""The replaceable parts of a decode step.

An engine builds each part once, as `part(model, kv, config)` where nothing else is said, with nothing left open in the
config. B: sessions in the step; L: layers; H: heads of K and V, which several query heads may share; D: their size.
What each part promises stands in `DecodeParts`; the classes of `BEST` say how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from ..checks import require

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
    `LogitsError`. `stages` names the parts, each an attribute that a stopwatch or a counter may wrap for a while.
    block_tables: `block_tables(sessions)` is int32 [L, B, max_blocks] on the device: the physical block of each logical
    one, 0 past the last.
    forward: the model over one token per session. Up to lesson 062 `forward(inputs)` gives `DecodeOutputs`, whose K and
    V are not in the cache yet. From 063 on `forward(inputs, append)` gives logits, and calls `append` once for each
    layer, or has attention that appends itself.
    kv_append: `kv_append(sessions, keys, values)`, for each layer [B, H, D], puts them where the next step will look.
    It raises `KVCacheExhausted` where a session needs a block and none is free, and copies a block that others own too.
    From 063 on `kv_append(inputs)` makes the `Append` of a step, for which `place` has made room.
    copy_blocks: `copy_blocks(copies)` makes the copies of `kv.blocks.Copy`, K and V of all layers, before anybody
    writes into them.
    rows: what the device knows of the running sessions (`decode.rows.Rows`).
    device_step: what the runner runs, made as `device_step(forward, kv_append, rows, best)`.
    runner: brings the operations of a step to the device (both in `decode.runner`).
    pipeline: which batches are in flight, made as `pipeline(step, kv, config)` (`decode.pipeline.Pipeline`). One
    without `begin` leaves the first tokens of requests to the host, which waits for them.
    prefill: `prefill(sessions)` gives logits [B, vocab_size] for the token after each prompt; its K and V are in its
    blocks then.
    delivery: how tokens get to readers in other threads, made as `delivery(config)` (`decode.delivery.Delivery`).
    ops: what the layers of the model are computed with in the step, made as `ops(model, config)`; prompts take those of
    `models.ops`.

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

    def build(self, name: str, *arguments: Any) -> Any:
        """The part of this name. Raises `ConfigError` where a step asks for one that is not there."""
        part = getattr(self, name)
        require(part is not None, f"the step needs a part `{name}`, and there is none: give it, or another step")
        return part(*arguments)

    def with_(self, **parts: Any) -> DecodeParts:
        """Some replaced, as in `BASELINE.with_(kv_append=MyKVAppend)`."""
        return replace(self, **parts)
