"""Stories of operations by number: a shape of a model, and calls of the five methods in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch

from .apart import STEP
from .models.operations import ASKS, OTHERS, Operations, Shape
from .operations_seen import Moves

Op = tuple[Any, ...]
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
MANY = ("unread", "alike")  # operations that take several steps
WHOLE = ("embed", "step", *MANY)  # of so many rows
NARROW = 8  # of rows with a large mean: sums of longer ones lose digits in right parts, too
COUNTS = ("layers", "width", "vocab_size", "seed")  # what shrinks step by step; other sizes go at once


class Story(NamedTuple):
    sizes: Shape
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class OpStep:
    """A step that is counted. words: which it is. before: rows of the steps before it. beside: whether another engine
    has stepped in between."""

    words: str
    rows: int
    before: tuple[int, ...]
    shape: Shape
    beside: bool = False


class OperationStories:
    """For a model of operations, which are interpreted kernels or run on a device."""

    def __init__(self, model: type[Operations], device: str = "cpu") -> None:
        self.model, self.device = model, device
        self.count = INTERPRETED if model.kernels else PLAIN
        self._reached: dict[Story, int] = {}  # operations of a story until the one that went wrong

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

    def play(self, part: type, story: Story, tell: Callable[[Any], object]) -> int:
        """Let a part live through a story; returns its lines. Raises what goes wrong."""
        STEP.begin()
        try:
            with memory_is_nan_at_first():
                played = self.model(part, story.sizes, self.device)
                tell(played)
                for number, op in enumerate(story.ops):
                    self._reached[story] = number + 1
                    STEP.begin()
                    do(played, op)
        finally:
            STEP.end()
        return len(played.lines)

    def watched(self, part: type, step: OpStep) -> Any:
        """What a step of a part does."""
        played = self.model(part, step.shape, self.device)
        for rows in step.before:
            played.step(rows)
        if step.beside:
            played.other(2)
            played.step(3)
            played.other(2)
        seen = played.seen_by(Moves(64 * step.shape.width))  # more than the rows of a step
        played.step(step.rows)
        return seen

    def smaller(self, story: Story) -> Iterator[Story]:
        """Stories with something left out or made smaller, the boldest first."""
        ops, half = story.ops[: self._reached.get(story)], len(story.ops) // 2
        if ops != story.ops:
            yield Story(story.sizes, ops)
        if story.sizes != Shape():
            yield Story(Shape(), ops)
        while half:
            yield from (Story(story.sizes, ops[:at] + ops[at + half :]) for at in range(0, len(ops), half))
            half //= 2
        for field in fields(Shape):
            value, least = getattr(story.sizes, field.name), getattr(Shape, field.name)
            for smaller in _lower(value, least) if field.name in COUNTS else [least] * (value != least):
                other: dict[str, Any] = {field.name: smaller}
                yield Story(replace(story.sizes, **other), story.ops)
        for at, op in enumerate(story.ops):
            for others in _smaller_op(op, story.sizes.layers):
                yield Story(story.sizes, (*story.ops[:at], *others, *story.ops[at + 1 :]))


def do(played: Operations, op: Op) -> None:
    """One operation of a story. Streams and layers are numbers, which count round those that are there."""
    kind, number, *more = op
    if kind in ("other", *WHOLE):
        getattr(played, kind)(number)
    elif streams := played.now.streams:
        layer = [more[0] % played.shape.layers] if more else []
        getattr(played, kind)(streams[number % len(streams)], *layer, *more[1:])


def _lower(number: int, least: int) -> list[int]:
    """Some smaller numbers, the least first; just one less only of small ones, where it matters."""
    lower = {least, number // 2, number * 3 // 4, min(number - 1, 16)}
    return sorted(one for one in lower if least <= one < number)


def _smaller_op(op: Op, layers: int) -> Iterator[tuple[Op, ...]]:
    """What may stand in its place: the same with smaller numbers, or what it consists of."""
    kind, number, *more = op
    for lower in _lower(number, int(kind in WHOLE)) if kind != "other" else ():
        yield ((kind, lower, *more),)
    if more and more[0]:
        yield ((kind, number, 0, *more[1:]),)
    if kind in MANY:
        yield (("step", number), ("step", number))
    if kind == "step":
        yield ("embed", number), *(op for layer in range(layers) for op in _layer(-1, layer)), ("logits", -1)


# -- drawing ----------------------------------------------------------------------------------------------------------


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


@contextmanager
def memory_is_nan_at_first() -> Iterator[None]:
    """In here memory that is reserved holds NaN until it is written."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # what fills it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
