"""The stories of runners, and what a step costs with one."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from ...measure.counters import DispatchMode
from .costs import Bound
from .layout import ONE_TABLE
from .models.runner import RunnerOfGraphs
from .operations_seen import moves_data
from .pool import Sizes
from .pool_stories import Draws, PoolStories, draw_sizes
from .stories import Story

STORIES = 60


class Runs(NamedTuple):
    """A step that is counted. before, now: sessions of the steps before it, and of itself; the last `sampled` of these
    sample, and so do those of the steps before if `warm`."""

    words: str
    before: int
    now: int
    sampled: int = 0
    warm: bool = False
    rows: int = 16


class Seen(NamedTuple):
    """What a step does. outside: operations that the host launches one by one. rows: that a graph runs over. shared:
    tensors of the outcome in the memory of a graph. needless: replays that sample, though nobody asks. made: graphs
    since the start; cold: those captured before a step of their kind had run."""

    outside: int
    captures: int
    replays: int
    rows: int
    shared: int
    needless: int
    made: int
    cold: int


class RunnerStories(PoolStories):
    """Stories of a pool, with a largest batch that is small: each graph takes time to capture."""

    part, words, holds = RunnerOfGraphs.part, RunnerOfGraphs.words, RunnerOfGraphs.holds
    engine = staticmethod(RunnerOfGraphs.engine)

    def __init__(self) -> None:
        super().__init__(RunnerOfGraphs, ONE_TABLE.cache)
        self.count = STORIES

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
    def watched(self, part: type, step: Runs) -> Seen:
        engine: Any = self.model(part, self.cache, Sizes(num_blocks=200, max_seq_len=64, rows=step.rows), self.device)
        sessions = []
        for n in range(max(step.before, step.now)):
            sessions.append(engine.pool.start(2 + n % 6))
            engine.started(sessions[-1], samples=step.now - step.sampled <= n < step.now)
        for _ in range(3):
            engine.step([one for one in sessions[: step.before] if step.warm or one.session.params.temperature == 0])
        known = len(engine.captures)
        engine.replays = []
        outside = Outside(engine)
        engine.around = lambda: outside
        engine.step(sessions[: step.now])
        engine.around = nullcontext
        held = [replay for replay in engine.replays if replay]
        return Seen(
            outside=outside.count,
            captures=len(engine.captures) - known,
            replays=len(held),
            rows=held[-1].rows if held else 0,
            shared=engine.shared,
            needless=sum(replay.sampled > bool(step.sampled) for replay in held),
            made=len(engine.captures),
            cold=engine.cold,
        )


class Outside(DispatchMode):
    """Counts operations that move data, but for those of graphs. Views, and memory that is only reserved, are no work
    for a device."""

    def __init__(self, engine: RunnerOfGraphs) -> None:
        super().__init__()
        self.engine, self.count = engine, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.engine.is_aside:
            if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
                with self:
                    return func.decompose(*args, **(kwargs or {}))
            self.count += moves_data(func)
        return func(*args, **(kwargs or {}))


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
