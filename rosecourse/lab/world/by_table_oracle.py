"""The oracle for parts that append in the forward: blocks are placed before, and slots are read off the block tables.

A step asks the part for a function, and calls that once for each layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...models.shape import Model
from ...request.session import InferenceSession
from .books import ONE_TABLE_BOOKS
from .causes import Cause
from .fault import Fault, PartIsWrong
from .given_rows import as_given
from .input_judges import Inputs
from .layout import ONE_TABLE, place_and_copy
from .learner import Learner
from .oracle import AnyAppendOracle
from .pool import Tracked

APPENDED_WITH = ("layer_idx", "k", "v")
WANTED = "`append(layer_idx, k, v)`, which writes K and V of one layer"


class ByTableOracle(AnyAppendOracle):
    """For a part `kv_append` of the lessons from 063 on: it is called with the inputs of a step, and returns a function
    that is called for each layer with K and V, [B, H, D]."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS

    def make_room(self, batch: Sequence[Tracked]) -> None:
        """Blocks for the next tokens, and copies of shared ones, as the step makes them."""
        place_and_copy(self.kv, [t.table for t in batch])
        self._written = True

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        sessions = [t.session for t in batch]
        return (decode_inputs(self.kv, sessions, self.sizes.config().max_blocks, expanded=self.steps % 4 != 3),)

    def act(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> None:
        append = self.part(*self.arguments(batch, tokens))
        for layer_idx, k_and_v in enumerate(zip(*self._rows(tokens), strict=True)):
            append(layer_idx, *k_and_v)

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        tokens = self.next_tokens(batch)
        (inputs,) = self.arguments(batch, tokens)
        keys, values = self._rows(tokens)
        lent: dict[str, Any] = {f"inputs.{name}": getattr(inputs, name) for name in vars(inputs)}
        for name, layers in (("k", keys), ("v", values)):
            lent |= {f"{name} of layer {layer_idx}": rows for layer_idx, rows in enumerate(layers)}
        judge = Inputs(self, batch, lent)
        with self._around():
            append = asked_to_append(self.learner, self.part, inputs)
            for layer_idx in range(self.sizes.layers):
                append(layer_idx, keys[layer_idx], values[layer_idx])
        judge.look()
        for t in batch:
            t.table.num_tokens += 1
        return tokens

    def append_elsewhere(
        self, kv: Any, part: Any, sessions: Sequence[InferenceSession], keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        most = max(len(session.table) for session in sessions)
        asked_to_append(self.learner, part, decode_inputs(kv, sessions, most, expanded=True))(0, keys, values)

    def _rows(self, tokens: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return as_given(tokens.to(self.kv.device), self.steps)

    def break_off(self, batch: Sequence[Tracked]) -> None:
        """Begin a step of a batch, and go no further than its first layer, as when somebody interrupts the forward.

        The step is then made again, or another one. What the first layer has written may stay.
        """
        self.make_room(batch)
        tokens = self.next_tokens(batch)
        keys, values = self._rows(tokens)
        append = asked_to_append(self.learner, self.part, *self.arguments(batch, tokens))
        append(0, keys[0], values[0])
        self.accept()


def decode_inputs(kv: Any, sessions: Sequence[InferenceSession], max_blocks: int, *, expanded: bool) -> DecodeInputs:
    """The inputs of a step, for which blocks have been placed. expanded: whether all layers read the same memory."""
    rows = [session.table + [0] * (max_blocks - len(session.table)) for session in sessions]
    tables = torch.tensor(rows, dtype=torch.int32).expand(kv.num_layers, -1, -1)
    told = torch.tensor([[s.token_ids[-1] for s in sessions], [s.num_cached_tokens for s in sessions]])
    token_ids, context_lens = told.to(kv.device)
    longest = max(session.num_cached_tokens for session in sessions)
    tables = (tables if expanded else tables.contiguous()).to(kv.device)
    return DecodeInputs(token_ids, context_lens, longest, tables, sessions)


def asked_to_append(learner: Learner, part: Any, inputs: DecodeInputs) -> Callable[..., Any]:
    """What a learner's part returns for a step, whose exceptions are told like the part's own.

    Raises `PartIsWrong` for what cannot be called for each layer.
    """
    append = learner.call(part, inputs)
    if not callable(append):
        given = "None" if append is None else f"an object of {type(append).__name__}"
        raise PartIsWrong(Fault(f"the part returned {given}; return {WANTED}", cause=Cause.INTERFACE))
    try:
        inspect.signature(append).bind(*APPENDED_WITH)
    except TypeError as error:
        what = f"what the part returned cannot be called: {error}; return {WANTED}"
        raise PartIsWrong(Fault(what, cause=Cause.INTERFACE)) from None
    except ValueError:  # without a signature, such as one made in C: calling it will tell
        pass
    return lambda *layer: learner.call(append, *layer, names=APPENDED_WITH)


def in_an_engine(learner: Learner) -> type:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""

    class Guarded:
        def __init__(self, model: Model, kv: Any, config: EngineConfig) -> None:
            self.made = learner.build(model, kv, config)

        def __call__(self, inputs: DecodeInputs) -> Callable[..., Any]:
            return asked_to_append(learner, self.made, inputs)

    return Guarded
