"""Stories of operations by number: a shape of a model, and calls of the five methods in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch

from .apart import STEP
from .models.operations import ASKS, OTHERS, Operations, Shape
from .operation_costs import OpStep, watched

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
MANY = ("unread", "alike")  # operations that take several steps
WHOLE = ("embed", "step", *MANY)  # of so many rows
NARROW = 8  # of rows with a large mean: sums of longer ones lose digits in right parts, too


class Story(NamedTuple):
    sizes: Shape
    ops: tuple[Op, ...]


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
        draw = _Draws(dice, shape, ROWS if wild else ROWS[:5])
        ops = [op for _ in range(dice.randint(1, 2 if kernels else 5)) for op in draw.some()]
        if shape.mean:
            shape = replace(shape, width=min(shape.width, NARROW), layers=1, dtype="float32")
        if kernels and any(kind in MANY for kind, *_ in ops):
            shape = replace(shape, width=NARROW, layers=1)
        return Story(shape, (("embed", draw.row()), *ops))

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
        """What a step of a part does: what the costs of operations are counted from."""
        return watched(self.model, self.device, part, step)

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
            for smaller in _lower(value, least) if isinstance(value, int) else [least] * (value != least):
                other: dict[str, Any] = {field.name: smaller}
                yield Story(replace(story.sizes, **other), story.ops)
        for at, op in enumerate(story.ops):
            for others in _smaller_op(op):
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


def _smaller_op(op: Op) -> Iterator[tuple[Op, ...]]:
    """What may stand in its place: the same with smaller numbers, or what it consists of."""
    kind, number, *more = op
    least = int(kind in WHOLE)
    for lower in _lower(number, least) if kind != "other" else ():
        yield ((kind, lower, *more),)
    if more and more[0]:
        yield ((kind, number, 0, *more[1:]),)
    if kind in MANY:
        yield (("step", number), ("step", number))
    if kind == "step":
        yield tuple(_step(number, 1))


def _layer(stream: int, layer: int) -> Iterator[Op]:
    for method, (_, _, add) in ASKS.items():
        yield method, stream, layer
        yield "linear_add", stream, layer, add


def _step(rows: int, layers: int) -> Iterator[Op]:
    yield "embed", rows
    for layer in range(layers):
        yield from _layer(-1, layer)
    yield "logits", -1


class _Draws:
    """Draws operations, some at once, as a model of one kind or another asks for them."""

    KINDS = ("step", "step", "together", "parallel", "alone", "again", "any", "any", "other", "other", "crossed", *MANY)

    def __init__(self, dice: random.Random, shape: Shape, rows: list[int]) -> None:
        self.dice, self.layers, self.rows = dice, range(shape.layers), rows

    def some(self) -> list[Op]:
        return list(getattr(self, f"_{self.dice.choice(self.KINDS)}")())

    def row(self) -> int:
        return self.dice.choice(self.rows)

    def _step(self) -> Iterator[Op]:
        yield from _step(self.row(), len(self.layers))

    def _together(self) -> Iterator[Op]:
        """Two streams are under way at once."""
        first, second = self.row(), self.row()
        yield from (("embed", first), ("embed", first if first % 2 else second))  # mostly of one size
        for layer in self.layers:
            yield from (*_layer(0, layer), *_layer(1, layer))
        yield from (("logits", 0), ("logits", 1))

    def _parallel(self) -> Iterator[Op]:
        """Layers that normalise a stream twice, and then add twice, as in GPT-J and Falcon."""
        yield "embed", self.row()
        for layer in self.layers:
            yield from ((method, -1, layer) for method in ASKS)
            yield from (("linear_add", -1, layer, add) for _, _, add in ASKS.values())
        yield "logits", -1

    def _alone(self) -> Iterator[Op]:
        yield from (("embed", self.row()), ("logits", -1))

    def _again(self) -> Iterator[Op]:
        """A stream that is asked for its logits, and goes on."""
        yield from (("logits", 0), ("logits", 0), ("linear_add", 0, 0, "attn_c_proj"), ("logits", 0))

    def _crossed(self) -> Iterator[Op]:
        """One map stands behind two norms."""
        yield from (("embed", self.row()), ("norm_linear", -1, 0), ("crossed", -1, 0), ("logits", -1))

    def _any(self) -> Iterator[Op]:
        stream, layer = self.dice.randrange(2), self.dice.choice(self.layers)
        method, (_, _, add) = self.dice.choice(list(ASKS.items()))
        yield self.dice.choice([(method, stream, layer), ("linear_add", stream, layer, add), ("logits", stream)])

    def _other(self) -> Iterator[Op]:
        yield from (("other", self.dice.randrange(len(OTHERS))), *self._step())

    def _unread(self) -> Iterator[Op]:
        yield "unread", self.row()

    def _alike(self) -> Iterator[Op]:
        yield "alike", self.dice.choice([1, 2])


@contextmanager
def memory_is_nan_at_first() -> Iterator[None]:
    """In here memory that is reserved holds NaN until it is written."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # what fills it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
