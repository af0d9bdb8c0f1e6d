"""Stories for the parts of 069 to 071: shapes of a model, and operations on streams of rows."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..operations_seen import Moves
from ..stories import Op, Ops, Stories, Story
from .operations import ASKS, MANY, OTHERS, WHOLE, Operations, Shape

PLAIN, INTERPRETED = 150, 30  # stories
CHOICES: dict[str, list[Any]] = {  # the first three of each are drawn in most stories, all of them in every fourth
    "layers": [1, 2, 1, 3],
    "width": [8, 4, 15, 70, 128],
    "vocab_size": [97, 5, 300, 1, 256, 257, 700],
    "eps": [1e-5, 1e-5, 0.1],
    "mean": [0, 0, 0, 40],
    "dtype": ["float32", "float32", "float32", "float16"],
    "seed": [0, 1, 2],
}
FOR_KERNELS = {
    "layers": [1, 1, 1, 2],
    "width": [8, 8, 72, 15, 4, 24],
    "vocab_size": [97, 5, 1, 300, 256],
    "mean": [0, 0, 40],
    "dtype": ["float32"],
}
ROWS = [3, 1, 2, 4, 9, 16, 17, 35]
KINDS = ("step", "step", "together", "parallel", "any", "any", "other", "unread", "alike")
NARROW = 8  # of rows with a large mean: sums of longer ones lose digits in right parts, too


@dataclass(frozen=True)
class OpStep:
    """A step that is counted. words: which it is. before: rows of the steps before it. beside: whether another engine
    has stepped in between."""

    words: str
    rows: int
    before: tuple[int, ...]
    shape: Shape
    beside: bool = False


class OperationStories(Stories):
    """For a model of operations, which are interpreted kernels or run on a device."""

    at_least_one = frozenset((kind, 0) for kind in WHOLE)

    def __init__(self, model: type[Operations], device: str = "cpu") -> None:
        self.model, self.device = model, device
        self.count = INTERPRETED if model.kernels else PLAIN

    def number(self, n: int) -> Story:
        dice, wild = random.Random(n), n % 4 == 3
        kernels = self.model.kernels
        choices: dict[str, Any] = CHOICES | FOR_KERNELS if kernels else CHOICES
        shape = Shape(**{name: dice.choice(values if wild else values[:3]) for name, values in choices.items()})
        ops = [op for _ in range(dice.randint(1, 2 if kernels else 5)) for op in _some(dice, shape.layers, wild)]
        if shape.mean:
            shape = replace(shape, width=min(shape.width, NARROW), layers=1, dtype="float32")
        if kernels and any(kind in MANY for kind, *_ in ops):
            shape = replace(shape, width=NARROW, layers=1)
        return Story(shape, (("embed", _rows(dice, wild)), *ops))

    def played(self, part: type, sizes: Shape) -> Operations:
        return self.model(part, sizes, self.device)

    def watched(self, part: type, step: OpStep) -> Any:
        played = self.played(part, step.shape)
        played.begin()
        for rows in step.before:
            played.step(rows)
        if step.beside:
            played.other(2)
            played.step(3)
            played.other(2)
        seen = played.seen_by(Moves(64 * step.shape.width))  # more than the rows of a step
        played.step(step.rows)
        return seen

    def instead(self, op: Op, sizes: Shape) -> Iterator[Ops]:
        kind, number, *_ = op
        if kind in MANY:
            yield ("step", number), ("step", number)
        if kind == "step":
            layers = (one for layer in range(sizes.layers) for one in _layer(-1, layer))
            yield ("embed", number), *layers, ("logits", -1)


def _layer(stream: int, layer: int) -> Iterator[Op]:
    for method, (_, _, add) in ASKS.items():
        yield method, stream, layer
        yield "linear_add", stream, layer, add


def _rows(dice: random.Random, wild: bool) -> int:
    return dice.choice(ROWS if wild else ROWS[:5])


def _some(dice: random.Random, layers: int, wild: bool) -> Iterator[Op]:
    """Some operations, as a model of one kind or another asks for them."""
    kind, rows = dice.choice(KINDS), _rows(dice, wild)
    if kind == "together":  # two streams are under way at once, mostly of one size
        yield from (("embed", rows), ("embed", rows if rows % 2 else _rows(dice, wild)))
        yield from (op for layer in range(layers) for stream in range(2) for op in _layer(stream, layer))
        yield from (("logits", 0), ("logits", 1))
    elif kind == "parallel":  # a stream is normalised twice, and then added to twice, as in GPT-J and Falcon
        yield "embed", rows
        for layer in range(layers):
            yield from ((method, -1, layer) for method in ASKS)
            yield from (("linear_add", -1, layer, add) for _, _, add in ASKS.values())
        yield "logits", -1
    elif kind == "any":
        yield from (_any(dice, layers) for _ in range(dice.randint(1, 4)))
    elif kind == "other":
        yield from (("other", dice.randrange(len(OTHERS))), ("step", rows))
    else:
        yield kind, min(rows, 2) if kind == "alike" else rows


def _any(dice: random.Random, layers: int) -> Op:
    stream, layer = dice.randrange(2), dice.randrange(layers)
    method, (_, _, add) = dice.choice(list(ASKS.items()))
    kinds: list[Op] = [(method, stream, layer), ("linear_add", stream, layer, add), ("logits", stream)]
    return dice.choice([*kinds, ("norm_linear", stream, layer, "norm_linear", "ln_2")])  # a map behind another norm
