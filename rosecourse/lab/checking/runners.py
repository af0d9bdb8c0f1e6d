"""The part `runner` of lesson 066: how the operations of a step come to the device.

What the device does in a step is the model's own: integers alone, so that every order of additions gives the same
numbers. Each step is run once more as a host launches it, from the same state, and everything is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...decode.inputs import DecodeInputs
from ...decode.parts import DecodeParts
from ...decode.rows import LIVE, POSITION, TOKEN
from ...decode.runner import Outcome
from ...kv.pool import KVPool
from ...lessons import l066
from . import Wrong, kind_of, must
from .costs import Bound
from .cpu_graph import CaptureError, CPUGraph, cpu_graphs_by
from .cpu_runners import FixedWidthForward
from .layout import ONE_TABLE
from .models.part_of_a_step import PartOfAStep
from .models.rows import params_of
from .operations_seen import DataMoves
from .pool import Live, Sizes
from .pool_stories import Draws, PoolStories, draw_sizes
from .stories import Story

VOCAB = 32
NAMES = {POSITION: "position", TOKEN: "last token", LIVE: "mark"}


class Held(NamedTuple):
    """What a graph holds: the work over so many rows."""

    rows: int
    sampled: bool


class Work(l066.DeviceStep):
    """What a runner is to run. A capture of it, and a run by the host, are noted."""

    def __init__(self, model: RunnerOfGraphs, rows: l066.Rows, best: Any) -> None:
        super().__init__(self._forward, lambda inputs: None, rows, best)
        kv, config = model.pool.kv, model.config
        self.model = model
        self.cache = torch.zeros(kv.num_blocks + 1, kv.block_size, dtype=torch.int64)
        self.places = torch.arange(config.max_blocks * kv.block_size)
        self.blocks, self.slots = self.places // kv.block_size, self.places % kv.block_size
        self.primes = torch.arange(VOCAB) * 37 + 11

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        self.model.noted(inputs, bool(sampled))
        outcome = self.eager(inputs, sampled)
        if self.model.capturing:
            self.model.memory += outcome
        return outcome

    def eager(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """One more token for each row, which goes on: as the lesson's own step, with draws that are short."""
        view = self.rows.view(len(inputs.token_ids))
        logits = self.forward(inputs, self.kv_append(inputs))
        inputs.context_lens.add_(view.live)
        tokens = self.best(logits)
        if sampled:
            drawn = (tokens + view.metadata.keys + view.metadata.positions) % VOCAB
            tokens = torch.where(view.metadata.temperature > 0, drawn, tokens)
        inputs.token_ids.copy_(tokens)
        return Outcome(logits, tokens)

    def _forward(self, inputs: DecodeInputs, append: None) -> Tensor:
        """Logits [B, VOCAB] by all tokens of a row, of which the newest is written into the cache here."""
        positions, tables = inputs.context_lens, inputs.block_tables[0].long()
        blocks = tables.gather(1, self.blocks[positions][:, None])[:, 0]
        self.cache[blocks, self.slots[positions]] = inputs.token_ids + VOCAB * positions
        seen = self.cache[tables].flatten(1)[:, : inputs.max_context_len + 1]
        places = self.places[: seen.shape[1]]
        total = (seen * (places + 1) * (places <= positions[:, None])).sum(1)
        return (total[:, None] * self.primes % 1021).float() / 256


class WatchedGraph(CPUGraph):
    """A graph of a CPU that notes what is done with it, and whose warm-up runs the work, as that of a GPU does."""

    def __init__(self, model: RunnerOfGraphs) -> None:
        super().__init__()
        self.model = model
        self.held: Held | None = None

    def warm_up(self, work: Callable[[], None]) -> None:
        with self.model.aside():
            work()

    def capture(self, work: Callable[[], None]) -> None:
        with self.model.aside(self):
            super().capture(work)

    def replay(self) -> None:
        if self.held:
            self.model.replays.append(self.held)
        with self.model.aside():
            super().replay()


class RunnerOfGraphs(PartOfAStep):
    """A runner, its rows and its work.

    captures, replays: what the graphs of them hold, those of `start` among them. memory: what captured work has made.
    cold: captures before a step of their kind had run.
    """

    takes_blocks = shows_blocks = False

    def __init__(self, part: type, cache: type[KVPool], sizes: Sizes, device: str = "cpu") -> None:
        self.captures: list[Held] = []
        self.replays: list[Held] = []
        self.memory: list[Tensor] = []
        self.warm: set[bool] = set()
        self.cold = 0
        self.capturing: WatchedGraph | None = None
        self.is_aside = False
        self.returned: tuple[Tensor, ...] = ()
        self.sessions = 0
        self.most = sizes.rows
        super().__init__(part, cache, sizes, device)

    def make(self, part: type, sizes: Sizes) -> Any:
        self.config = replace(self.config, max_batch_size=sizes.rows)
        shape = SimpleNamespace(**vars(sizes.model().shape), vocab_size=VOCAB)
        model: Any = SimpleNamespace(shape=shape, dtype=torch.float32, device=self.pool.kv.device)
        self.rows = l066.Rows(model, self.pool.kv, self.config)
        with self._graphs():
            made = part(model, self.pool.kv, self.config)
            best = getattr(made, "best", None)
            if not callable(best):
                raise Wrong("a runner must have `best`, by which a step finds the most probable tokens; it has none")
            self.work = Work(self, self.rows, best)
            made.start(self.work)
        return made

    def started(self, live: Live, parent: Live | None = None, samples: bool | None = None) -> None:
        """samples: whether the session does; None: every third does, or fewer."""
        known = live.session if parent is None else parent.session
        if live.number < 0:
            live.number, self.sessions = self.sessions, self.sessions + 1
            if samples is None:
                shuffle = self.pool.sizes.shuffle
                samples = (live.number + shuffle) % (3 + 2 * shuffle) == 2
            live.session.params = params_of(3 * live.number + 2 if samples else 0)
        tokens = [*known.token_ids[: live.length], *[0] * (live.length + 1 - len(known.token_ids))]
        live.session.token_ids = [*tokens[: live.length], (7 * live.number + live.length) % VOCAB]
        live.session.prompt_ids = [*live.session.token_ids]

    def _graphs(self) -> Any:
        return cpu_graphs_by(lambda: WatchedGraph(self))

    @contextmanager
    def aside(self, capturing: WatchedGraph | None = None) -> Iterator[None]:
        """In here operations are a graph's own, or its warm-up's."""
        before = self.is_aside, self.capturing
        self.is_aside, self.capturing = True, capturing
        try:
            yield
        finally:
            self.is_aside, self.capturing = before

    def noted(self, inputs: DecodeInputs, sampled: bool) -> None:
        rows = len(inputs.token_ids)
        if self.capturing:
            self.capturing.held = Held(rows, sampled)
            self.captures.append(self.capturing.held)
            self.cold += sampled not in self.warm
        else:
            try:
                int(self.rows.view(rows).live.sum())
            except CaptureError:
                raise Wrong("a graph that captures the work must come of graphs_for(kv.device); it does not") from None
        self.warm.add(sampled)

    @property
    def shared(self) -> int:
        """Tensors of the last outcome that lie in the memory of a graph."""
        made = {tensor.untyped_storage().data_ptr() for tensor in self.memory}
        return sum(tensor.untyped_storage().data_ptr() in made for tensor in self.returned)

    def call(self, batch: list[Live]) -> None:
        tables = [live.session.table for live in batch]
        for source, destination in self.pool.kv.place(tables):
            for cache in (self.pool.kv.keys.transpose(0, 1), self.pool.kv.values.transpose(0, 1), self.work.cache):
                cache[destination] = cache[source]
        inputs = self.rows.plan([live.session for live in batch])
        sampled = self.rows.sampling
        before = self.rows.state.clone(), self.work.cache.clone()
        with self._graphs(), self.around():
            returned = self.made(inputs, sampled)
        outcome = self._outcome(returned, len(batch))
        found = self.rows.state.clone(), self.work.cache.clone()
        for now, was in zip((self.rows.state, self.work.cache), before, strict=True):
            now.copy_(was)
        self.expected = self.work.eager(inputs, sampled)
        self._look_at_rows(found[0], batch)
        self._look_at_cache(found[1])
        self._look_at_outcome(outcome, batch)

    def advance(self, batch: list[Live]) -> None:
        self.append(batch)
        tokens = self.expected.tokens.tolist()
        self.rows.read(tokens)
        for live, token in zip(batch, tokens, strict=True):
            live.session.token_ids = [*live.session.token_ids, token]
            live.session.prompt_ids = [*live.session.token_ids]

    def _outcome(self, returned: Any, rows: int) -> Outcome:
        """What the part has returned, which the next replay may overwrite."""
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise Wrong(f"the part must return Outcome(logits, tokens), two tensors; found: {type(returned).__name__}")
        self.returned = returned
        must("the logits that are returned", f"a tensor [{rows}, {VOCAB}] of float32 on cpu", kind_of(returned[0]))
        must("the tokens that are returned", f"a tensor [{rows}] of int64 on cpu", kind_of(returned[1]))
        return Outcome(*(tensor.clone() for tensor in returned))

    def _look_at_rows(self, found: Tensor, batch: list[Live]) -> None:
        count, n = self.rows.max_rows, len(batch)
        fields, expected = found[: (LIVE + 1) * count].view(LIVE + 1, count), self.rows.fields
        for field, name in NAMES.items():
            for row in range(count if field != TOKEN else n):
                who = batch[row].name if row < n else "nobody"
                at = f"after the step the {name} in row {row}, of {who},"
                must(at, int(expected[field, row]), int(fields[field, row]))
        tables = found[(LIVE + 1) * count :].view(count, -1)
        if not torch.equal(tables[:n], self.rows.block_tables[:n]) or not torch.equal(fields[:, :n], expected[:, :n]):
            raise Wrong("the step must leave the block tables of the rows, and what sampling is told, as they were")

    def _look_at_cache(self, found: Tensor) -> None:
        differs = (found != self.work.cache)[:-1].nonzero()  # the last block is that of pads
        if len(differs):
            block, slot = differs[0].tolist()
            owners = "".join(live.name for live in self.pool.live if block in live.session.table) or "nobody"
            places = (divmod(int(cache[block, slot]), VOCAB) for cache in (self.work.cache, found))
            must(f"block {block} of {owners}, slot {slot}", *(f"token {token} at position {n}" for n, token in places))

    def _look_at_outcome(self, outcome: Outcome, batch: list[Live]) -> None:
        must("the tokens that are returned", self.expected.tokens.tolist(), outcome.tokens.tolist())
        wrong = (outcome.logits != self.expected.logits).any(1).nonzero().flatten().tolist()
        for row in wrong:
            begins = (logits[row, :4].tolist() for logits in (self.expected.logits, outcome.logits))
            raise Wrong("the logits of row {}, {}, must begin with {}; found: {}".format(row, batch[row].name, *begins))


class RunnerStories(PoolStories):
    """Stories of a pool, with a largest batch that is small: each graph takes time to capture."""

    part, holds = "runner", "each step makes what it makes where the host launches it"

    def __init__(self) -> None:
        super().__init__(RunnerOfGraphs, ONE_TABLE.cache)
        self.count = 60

    @staticmethod
    def engine(parts: DecodeParts, device: torch.device) -> DecodeParts:
        return parts.with_(forward=FixedWidthForward) if device.type == "cpu" else parts

    def number(self, n: int) -> Story:
        dice = random.Random(n)
        drawn = draw_sizes(dice, False, False)
        rows = dice.choice([4, 2, 3, 1] if n % 4 else [4, 8, 11, 16])
        sizes = Sizes(drawn.block_size, num_blocks=40, max_seq_len=drawn.max_seq_len, shuffle=drawn.shuffle, rows=rows)
        draws = Draws(dice, False, sizes)
        kinds = ["step", "step", *dice.sample(draws.KINDS, dice.choice([2, 3, len(draws.KINDS)]))]
        ops = [draws.op(kind) for kind in dice.choices(kinds, k=dice.randint(2, 16))]
        return Story(sizes, (("start", draws.length()), ("start", draws.length()), *ops))

    @torch.inference_mode()
    def watched(self, part: type, step: Runs) -> Any:
        """What a step does. outside: operations that the host launches one by one. rows: that a graph runs over.
        shared: tensors of the outcome in the memory of a graph. needless: replays that sample, though nobody asks.
        made: graphs since the start; cold: those captured before a step of their kind had run."""
        engine: Any = self.model(part, self.cache, Sizes(num_blocks=200, max_seq_len=64, rows=step.rows), self.device)
        sessions = []
        for n in range(max(step.before, step.now)):
            sessions.append(engine.pool.start(2 + n % 6))
            engine.started(sessions[-1], samples=step.now - step.sampled <= n < step.now)
        for _ in range(3):
            engine.step([one for one in sessions[: step.before] if step.warm or one.session.params.temperature == 0])
        known, engine.replays = len(engine.captures), []
        outside = DataMoves(lambda: engine.is_aside)
        engine.around = lambda: outside
        engine.step(sessions[: step.now])
        return SimpleNamespace(
            outside=outside.operations,
            captures=len(engine.captures) - known,
            replays=len(engine.replays),
            rows=engine.replays[-1].rows if engine.replays else 0,
            shared=engine.shared,
            needless=sum(replay.sampled > bool(step.sampled) for replay in engine.replays),
            made=len(engine.captures),
            cold=engine.cold,
        )


class Runs(NamedTuple):
    """A step that is counted. before, now: sessions of the steps before it, and of itself; the last `sampled` of these
    sample, and so do those of the steps before if `warm`."""

    words: str
    before: int
    now: int
    sampled: int = 0
    warm: bool = False
    rows: int = 16


ALL = (
    Runs("1 session, as before", 1, 1),
    Runs("3 sessions, as before", 3, 3),
    Runs("16 sessions, as before", 16, 16),
    Runs("5 sessions, after one of 1", 1, 5),
    Runs("2 sessions, after one of 6", 6, 2),
    Runs("4 sessions, two of which sample, as before", 4, 4, sampled=2, warm=True),
    Runs("11 sessions, of 11 rows at most", 11, 11, rows=11),
)
FIRST = (Runs("3 sessions, the first of which samples now", 2, 3, sampled=1),)
IDEA = (
    Bound("operations that the host launches outside a replay", ALL, "outside"),
    Bound("captures", (*ALL, *FIRST), "captures"),
    Bound("replays", (*ALL, *FIRST), "replays"),
    Bound("rows in the graph that it replays", ALL, "rows"),
    Bound("tensors of its outcome in the memory of a graph", ALL, "shared"),
    Bound("replays of a graph that samples, though nobody asks", ALL, "needless"),
    Bound("graphs captured since the start", ALL, "made"),
    Bound("graphs captured before a step of their kind has run", FIRST, "cold"),
)
