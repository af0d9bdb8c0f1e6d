"""Stories of a pool of sessions: sizes and operations that a seeded generator draws, and how a part lives through one.

A session is named by a number, which counts round the live ones.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...kv.pool import KVPool
from . import counted
from .apart import STEP
from .models.part_of_a_step import PartOfAStep
from .pool import MOST_SESSIONS, Live, Pool, Sizes
from .stories import Op, Ops, Playing, Stories, Story

KERNEL_STORIES = 120  # that a part lives through where kernels are interpreted
MOST_STEPS, MOST_INTERPRETED = 240, 30  # of a story; with kernels that are interpreted
MOST_NUMBERS = 2**17  # in a cache: a large one takes long to compare
TOGETHER = {"start": "many", "fork": "family"}
HUGE = 20  # of so many stories one has a huge size, and one large blocks
CHOICES: dict[str, list[Any]] = {  # the first four of each are drawn in most stories, all of them in every fourth
    "block_size": [4, 2, 1, 8, 16, 64, 256],
    "layers": [1, 2, 3, 2],
    "heads": [1, 2, 3, 5, 12],
    "head_dim": [2, 4, 8, 64, 128],
    "num_blocks": [12, 6, 20, 40, 300, 600],
    "max_seq_len": [32, 16, 64, 300],
    "dtype": ["float32", "float32", "float16", "bfloat16"],
    "shuffle": [0, 1, 2, 3, 4, 5],
}
GATES = [(1, None), (10**6, None), (2, 3), (10**6, 2)]


def draw_sizes(dice: random.Random, wild: bool, kernels: bool) -> Sizes:
    drawn = {name: dice.choice(values if wild else values[:4]) for name, values in CHOICES.items()}
    gates = dice.choice(GATES) if kernels else (10**6, None)
    sizes = Sizes(**drawn, any_batch=gates[0], whole_batch=gates[1])
    room = MOST_NUMBERS // (sizes.layers * sizes.heads * sizes.block_size * sizes.head_dim)
    return replace(sizes, num_blocks=max(6, min(sizes.num_blocks, room)))


def _huge(dice: random.Random, kernels: bool) -> Sizes:
    """One size is larger than all that a part may have been thought for."""
    gate = 1 if kernels else Sizes.any_batch
    large = [
        Sizes(block_size=dice.choice([128, 256]), max_seq_len=600, any_batch=gate),
        Sizes(block_size=1, num_blocks=70_000, shuffle=1, any_batch=gate),
        Sizes(num_blocks=400, shuffle=1, any_batch=gate),
        Sizes(heads=dice.choice([12, 25]), head_dim=64, any_batch=gate),
    ]
    return dice.choice(large)


class Draws:
    """Draws operations. Sessions have a few lengths only: they are to be alike."""

    KINDS = ("step", "start", "fork", "free", "again", "tight", "many", "other", "family")

    def __init__(self, dice: random.Random, wild: bool, sizes: Sizes) -> None:
        self.dice, self.most = dice, sizes.max_seq_len - 1
        size = sizes.block_size
        self.lengths = [
            dice.choice([0, 1, 1, 2]) * size + dice.choice([dice.randrange(size), size - 1, 0]) for _ in range(3)
        ]
        if size == 64:  # sessions at slots of which the lower bits are the same
            self.lengths = [self.lengths[0], self.lengths[0] + 2 ** dice.randrange(3, 6)]
        who, times = lambda: dice.randrange(6), [1, 1, 1, 2, 3, 8, 120 if wild else 4]
        self.draws: dict[str, Callable[[], Op]] = {
            "step": lambda: (self._batch(), dice.choice(times)),
            "tight": lambda: (self._batch(), dice.choice([0, -1, 1])),
            "broken": lambda: (self._batch(),),
            "start": lambda: (self.length(),),
            "many": lambda: (self.length(), dice.choice([5, 20, 40] if wild else [3, 5]), dice.choice([0, 1])),
            "again": lambda: (who(), dice.choice([None, None, self.length()]), dice.choice([0, 1])),
            "family": lambda: (who(), dice.choice([2, 3, 9 if wild else 4])),
            "other": tuple,
        } | dict.fromkeys(("fork", "free", "say"), lambda: (who(),))

    def op(self, kind: str) -> Op:
        return (kind, *self.draws[kind]())

    def length(self) -> int:
        return min(self.dice.choice(self.lengths), self.most)

    def _batch(self) -> Any:
        some = tuple(self.dice.randrange(6) for _ in range(self.dice.choice([1, 1, 2, 3, 4])))
        return self.dice.choice(["all", "reversed", some])


class PlayedInAPool(Playing):
    def __init__(self, make: Callable[[Sizes], PartOfAStep], sizes: Sizes) -> None:
        super().__init__()
        self.make, self.sizes, self.steps = make, sizes, 0

    def begin(self) -> None:
        self.engines.append(self.make(replace(self.sizes, num_blocks=self.sizes.num_blocks + 3 * len(self.engines))))

    @property
    def pool(self) -> Pool:
        return self.engine.pool

    def picture(self) -> list[str]:
        return self.engine.picture()

    def do(self, op: Op) -> None:
        if self.pool.live or op[0] in ("start", "many", "other"):
            super().do(op)

    def _who(self, number: int) -> Live:
        return self.pool.live[number % len(self.pool.live)]

    def _start(self, length: int, count: int = 1, longer: int = 0) -> None:
        """longer: whether they are of several lengths."""
        known, most = len(self.pool.live), self.sizes.max_seq_len - 1
        for n in range(count):
            tokens = min(length + n % self.sizes.block_size * longer, most)
            if self.pool.kv.num_available() >= self.pool.blocks_for(tokens) and len(self.pool.live) < MOST_SESSIONS:
                self.engine.started(self.pool.start(tokens))
        more = f", or up to {self.sizes.block_size - 1} more" * longer
        self._say_new(known, "start", f" with {counted(min(length, most), 'token')}{more}")

    _many = _start

    def _fork(self, number: int, count: int = 1) -> None:
        known, parent = len(self.pool.live), self._who(number)
        for _ in range(min(count, MOST_SESSIONS - known)):
            self.engine.started(self.pool.fork(parent), parent)
        self._say_new(known, f"fork {parent.name}:", "")

    _family = _fork

    def _say_new(self, known: int, what: str, how: str) -> None:
        names = [live.name for live in self.pool.live[known:]]
        if names:
            self.say(f"{what} {', '.join(names) if len(names) < 4 else f'{names[0]} to {names[-1]}'}{how}")

    def _free(self, number: int) -> None:
        live = self._who(number)
        self.say(f"free {live.name}")
        self.pool.free(live)

    def _say(self, number: int) -> None:
        self.say(self.engine.say(self._who(number)))

    def _broken(self, chosen: Any) -> None:
        batch = self._batch(chosen)
        if batch:
            self.say(self.engine.broken(batch))
            for live in batch:
                live.placed = True

    def _again(self, number: int, length: int | None, same_last: int) -> None:
        live, pool = self._who(number), self.pool
        length = live.length if length is None else length
        own = sum(pool.layout.info_in_use(pool.kv, block).owners == 1 for block in pool.lists(live)[0])
        if pool.kv.num_available() + own >= pool.blocks_for(length):
            had = [ids[-1:] for ids in pool.lists(live)]
            pool.again(live, length, bool(same_last))
            last = any(ids and ids[-1:] == end for ids, end in zip(pool.lists(live), had, strict=True))
            others = "all its blocks but the last" if last else "its blocks"
            self.say(f"free {live.name} and compute it again with {counted(length, 'token')}; {others} are others")
            self.engine.started(live)

    def _step(self, chosen: Any, times: int) -> None:
        for _ in range(times):
            self._one_step(chosen, None)

    def _tight(self, chosen: Any, room: int) -> None:
        self._one_step(chosen, room if room >= 0 or self.engine.takes_blocks else None)

    def _one_step(self, chosen: Any, room: int | None) -> None:
        batch = self._batch(chosen)
        interpreted = self.sizes.any_batch != Sizes.any_batch
        if not batch or self.steps >= (MOST_INTERPRETED if interpreted else MOST_STEPS):
            return
        self.steps += 1 + interpreted * len(batch) * self.sizes.layers // 8
        needed = self.pool.blocks_needed(batch)
        room = None if room is not None and needed + room < 0 else room
        free = "" if room is None else f", with {needed + room} block(s) free; it needs {needed or 'none'}"
        self.say(f"step [{', '.join(live.name for live in batch)}]{free}")
        STEP.begin()
        self.engine.step(batch, room)
        for live in batch:
            live.placed = False
        for engine in self.engines:
            engine.look_back()

    def _batch(self, chosen: Any) -> list[Live]:
        """The sessions of a batch, in its order, as many as have room."""
        live = self.pool.live
        if chosen in ("all", "reversed"):
            batch = live[:] if chosen == "all" else live[::-1]
        else:
            batch = list(dict.fromkeys(self._who(number) for number in chosen)) if live else []
        batch = [one for one in batch if one.length < self.sizes.max_seq_len][: self.engine.most]
        while batch and self.pool.blocks_needed(batch) > self.pool.kv.num_available():
            batch.pop()
        return batch


class PoolStories(Stories):
    """The stories of a kind of part that lives in a pool of sessions. kernels: whether batches come to their gates."""

    at_least_one = frozenset({("step", 1)})

    def __init__(
        self, model: type[PartOfAStep], cache: type[KVPool], kernels: bool = False, device: str = "cpu"
    ) -> None:
        self.model, self.cache, self.kernels, self.device = model, cache, kernels, device
        self.count = KERNEL_STORIES if kernels else model.stories

    def number(self, n: int) -> Story:
        dice, wild = random.Random(n), n % 4 == 3
        sizes = draw_sizes(dice, wild, self.kernels)
        if n % HUGE == HUGE - 1:
            sizes = _huge(dice, self.kernels)
        elif n % HUGE == HUGE // 2:
            sizes = replace(sizes, block_size=64, heads=1, head_dim=2, num_blocks=24, max_seq_len=300)
        draw = Draws(dice, wild, sizes)
        known = (*draw.KINDS, *self.model.operations)
        kinds = ["step", "step", *dice.sample(known, dice.choice([2, 3, 5, len(known)]))]  # few, and more of each
        ops = [draw.op(kind) for kind in dice.choices(kinds, k=dice.randint(2, 16))]
        return Story(sizes, (("start", draw.length()), *ops))

    def played(self, part: type, sizes: Sizes) -> PlayedInAPool:
        return PlayedInAPool(lambda sizes: self.model(part, self.cache, sizes, self.device), sizes)

    def together(self, ops: Ops) -> Iterator[Ops]:
        """Sessions that begin alike, and forks of one session, as one operation."""
        for at, (first, second) in enumerate(itertools.pairwise(ops)):
            if first == second and first[0] in TOGETHER:
                count = next((n for n, op in enumerate(ops[at:]) if op != first), len(ops) - at)
                end = (0,) if first[0] == "start" else ()
                yield (*ops[:at], (TOGETHER[first[0]], first[1], count, *end), *ops[at + count :])

    def instead(self, op: Op, sizes: Sizes) -> Iterator[Ops]:
        kind, first, *_ = (*op, None)
        simpler: dict[str, Op] = {"many": ("start", first), "family": ("fork", first), "tight": ("step", first, 1)}
        if kind in simpler:
            yield (simpler[kind],)
