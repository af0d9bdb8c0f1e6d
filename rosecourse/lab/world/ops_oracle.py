"""The oracle of operations: models whose every product is known, steps of any batch, and a graph that records one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import SamplingParams
from ...decode.graphs import Graph
from ...models.ops import LayerOps
from ...request.session import InferenceSession
from .causes import Cause
from .fault import Fault, PartIsWrong
from .graph_makers import graphs_for
from .judged_ops import JudgedOps
from .learner import Learner
from .ops_close import CLOSE
from .ops_guard import GuardedOps
from .ops_judges import FORGOTTEN, Judge
from .ops_kept import copies_kept, tensors_kept
from .ops_launches import GraphOfLaunches
from .ops_log import OpsLog, OpsSeen
from .ops_models import ModelSizes
from .ops_streams import Stream
from .ops_weights import Weights
from .oracle import Around, Oracle
from .pool import Sizes, Tracked

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
FROZEN = "a replay runs what was recorded: what Python decides from the numbers of one step is frozen in it"


class OpsOracle(Oracle):
    """For a part `ops`. There is no cache: K and V of each session are in its `dense`."""

    unknown = "what `add_norm` returns is first the sum, which goes on, and then its norm, which the product takes"

    def __init__(self, learner: Learner, sizes: Sizes, guard: GuardedOps | None = None) -> None:
        """guard: of a part that another oracle has built, for another model."""
        self.learner, self.sizes, self.steps = learner, sizes, 0
        self.kv: Any = SimpleNamespace(k_layers=(), v_layers=())
        self.log = OpsLog(64 * sizes.heads * sizes.head_dim)
        self.sessions: list[Tracked] = []
        self.started = 0
        self.model = (sizes if isinstance(sizes, ModelSizes) else ModelSizes(**vars(sizes))).model()
        self.judge = Judge(Weights(self.model), self.unknown)
        self.guard = guard or GuardedOps(learner, self.model, sizes.config())
        self.part = self.guard.made
        self.ops = JudgedOps(self.guard, self.log, self.judge)

    def of_another_model(self, **sizes: Any) -> Self:
        """The same object of the part, with another model beside the first one."""
        other = type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1, **sizes), self.guard)
        other.judge.strangers, self.judge.strangers = [self.judge.weights], [other.judge.weights]
        return other

    def twin(self) -> Self:
        return type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int = 3) -> Tracked:
        """A session of so many tokens, whose K and V are in the cache, and one more."""
        generator = torch.Generator().manual_seed(self.started)
        sizes = self.sizes
        shape = (2, sizes.layers, length, sizes.heads, sizes.head_dim)
        dense = torch.randn(shape, generator=generator).to(sizes.device)
        word = (7 * self.started + 3) % len(self.model.wte)
        session = InferenceSession([0] * length + [word], SamplingParams(max_new_tokens=10**6))
        return self._track(session, dense)

    def free(self, tracked: Tracked) -> None:
        self.sessions.remove(tracked)

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, *batch: Tracked, around: Around = nullcontext) -> None:
        """A token for each session of the batch, in this order; each product is looked at as it is made."""
        self._begin(batch)
        keys_values: list[list[Tensor]] = []
        model = self.model.with_ops(self.ops)
        with around(), torch.inference_mode():
            stream = model.hidden(*self._inputs(batch), self._attention(batch, keys_values))
            model.logits(stream)
        self._end(batch, keys_values)
        self.judge.strange = self.ops.strange_of(stream, "the step before")

    def step_together(self, first: Sequence[Tracked], second: Sequence[Tracked]) -> None:
        """Two batches in one step, layer by layer: two streams are under way at once."""
        batches, model = (first, second), self.model.with_ops(self.ops)
        kept: tuple[list[list[Tensor]], ...] = ([], [])
        self._begin([*first, *second])
        with torch.inference_mode():
            attends = [self._attention(*pair) for pair in zip(batches, kept, strict=True)]
            streams = [self.ops.embed(*self._inputs(batch), model.wte, model.wpe) for batch in batches]
            for layer_idx, layer in enumerate(model.layers):
                for n in (0, 1):
                    self._enter(batches[n], streams[1 - n])
                    streams[n] = layer(streams[n], layer_idx, attends[n], self.ops)
            for n in (0, 1):
                self._enter(batches[n], streams[1 - n])
                self.ops.logits(streams[n], model.ln_f, model.wte)
        self.ops.look_at_returned()
        for batch, keys_values in zip(batches, kept, strict=True):
            self._append(batch, keys_values)
        self.judge.strange = []

    def logits_again(self, *batch: Tracked) -> None:
        """A step whose last stream is asked for its logits twice; then it goes on, and is asked a third time."""
        self._begin(batch)
        keys_values: list[list[Tensor]] = []
        model = self.model.with_ops(self.ops)
        with torch.inference_mode():
            stream = model.hidden(*self._inputs(batch), self._attention(batch, keys_values))
            for _ in range(2):
                model.logits(stream)
            stream = self.ops.linear_add(self._some(batch), model.layers[0].attn_c_proj, stream)
            model.logits(stream)
        self._end(batch, keys_values)

    def steps_that_leave_nothing(self, *batch: Tracked, number: int) -> None:
        """So many steps, after some. Raises `PartIsWrong` if the part holds more tensors after them than before."""
        for _ in range(number):
            self.step(*batch)
        before = tensors_kept(self.part)
        for _ in range(number):
            self.step(*batch)
        more = tensors_kept(self.part) - before
        if more > 0:
            what = f"after {number} steps more of the same sessions the part holds {more} tensors more"
            raise PartIsWrong(Fault(what, reason=FORGOTTEN, cause=Cause.STATE_KEPT))

    def recorded(self, *batch: Tracked) -> None:
        """A graph records a step, after a warm-up, and is replayed for other words at other positions."""
        self._begin(batch)
        token_ids, positions = self._inputs(batch)
        mine, right = self.model.with_ops(self.guard), self.model.with_ops(LayerOps())
        made: list[Tensor] = []

        def run() -> None:
            made[:] = [mine.logits(mine.hidden(token_ids, positions, _mixed))]

        graph = self._graph()
        with torch.inference_mode():
            run()
            graph.capture(run)
            for n in range(3):
                token_ids.copy_((token_ids * 5 + n) % len(self.model.wte))
                positions.copy_((positions + 1) % self.sizes.max_seq_len)
                graph.replay()
                expected = right.logits(right.hidden(token_ids, positions, _mixed))
                self._look_at_replay(n, made[0], expected)

    def _graph(self) -> Graph:
        """A graph that holds kernels, too, on the device of the model."""
        return GraphOfLaunches() if self.model.device.type == "cpu" else graphs_for(self.model.device)()

    def _look_at_replay(self, number: int, found: Tensor, expected: Tensor) -> None:
        most = 10 * CLOSE[expected.dtype] * (1 + expected.abs().max().item())
        if torch.allclose(found, expected, rtol=0, atol=most):
            return
        what = f"replay {number} of a graph that has recorded the operations makes other logits than the operations"
        raise PartIsWrong(Fault(what, reason=FROZEN, cause=Cause.INPUTS_FROZEN))

    # -- what a step is made of ---------------------------------------------------------------------------------------

    def _begin(self, batch: Sequence[Tracked]) -> None:
        self.steps += 1
        self.log.begin()
        self.ops.begin([t.name for t in batch])

    def _enter(self, batch: Sequence[Tracked], other: Stream) -> None:
        """The next operations are of this batch, while another stream is under way."""
        self.ops.names = [t.name for t in batch]
        self.judge.strange = self.ops.strange_of(other, "another stream")

    def _inputs(self, batch: Sequence[Tracked]) -> tuple[Tensor, Tensor]:
        numbers = [t.session.token_ids[-1] for t in batch], [t.length for t in batch]
        token_ids, positions = torch.tensor(numbers, device=self.sizes.device)
        return token_ids.clone(), positions.clone()

    def _attention(self, batch: Sequence[Tracked], keys_values: list[list[Tensor]]) -> Attention:
        """Attention over what the sessions have cached; the new K and V of each layer are noted."""

        def attend(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_values.append([k.float(), v.float()])
            rows = []
            for row, t in enumerate(batch):
                keys, values = (
                    torch.cat([old[layer_idx], new[row : row + 1].float()])
                    for old, new in zip(t.dense, (k, v), strict=True)
                )
                attended = F.scaled_dot_product_attention(
                    q[row].float()[:, None], keys.transpose(0, 1), values.transpose(0, 1)
                )
                rows.append(attended[:, 0])
            return torch.stack(rows).to(q.dtype)

        return attend

    def _some(self, batch: Sequence[Tracked]) -> Tensor:
        """Something to be added, which no layer has made: [B, C]."""
        generator = torch.Generator().manual_seed(self.steps)
        return torch.randn(len(batch), self.model.shape.width, generator=generator).to(self.model.wte)

    def _end(self, batch: Sequence[Tracked], keys_values: list[list[Tensor]]) -> None:
        self.ops.look_at_returned()
        self._append(batch, keys_values)

    def _append(self, batch: Sequence[Tracked], keys_values: list[list[Tensor]]) -> None:
        """The sessions have one token more."""
        for row, t in enumerate(batch):
            new = [[layer[kind][row : row + 1] for layer in keys_values] for kind in (0, 1)]
            if keys_values:
                t.dense = torch.cat([t.dense, torch.stack([torch.stack(kind) for kind in new])], dim=2)
            else:
                t.dense = torch.cat([t.dense, torch.zeros_like(t.dense[:, :, :1])], dim=2)
            t.session.token_ids.append((5 * t.length + 11 * t.number) % len(self.model.wte))

    def lists(self, tracked: Tracked) -> list[list[int]]:
        """There are no blocks."""
        return []

    # -- what a check asks --------------------------------------------------------------------------------------------

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        return torch.empty(0)

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return (*self._inputs(batch), self.model.wte, self.model.wpe)

    def ops_seen(self) -> OpsSeen:
        return self.log.seen(copies_kept(self.part, self.model))


class KernelOpsOracle(OpsOracle):
    """For operations with kernels of their own."""

    unknown = (
        "take one number: which row and which column is it made of, how far does the loop go, and what comes then?"
    )


def _mixed(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What stands in the place of attention in a graph: q, k and v, each with a weight of its own."""
    return q + 0.5 * k + 0.25 * v
