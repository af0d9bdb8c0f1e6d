"""What a recorded decode step spends its time on: its kernels by what they do for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_high
from typing import NamedTuple

from .timeline import Kernel, Timeline

# The product that makes the logits reads more than any other, so it is the longest product of a step.
HEAD = "product with the vocabulary"
PRODUCTS = "products of the layers"
ATTENTION = "attention"
APPEND = "append of K and V"
NORMS = "layer norms"
ELEMENTWISE = "sums and GELU, one by one"
COPIES = "copies"
REST = "embedding, choice, the rest"
GAPS = "gaps between kernels"
CLASSES = (HEAD, PRODUCTS, ATTENTION, APPEND, NORMS, ELEMENTWISE, REST, COPIES)  # of kernels
OF_LAYERS = (PRODUCTS, ATTENTION, APPEND, NORMS, ELEMENTWISE)

KINDS = {"attention": ATTENTION, "append": APPEND, "copy": COPIES, "matrix": PRODUCTS}
# The other kernels, by their names; the first that fits counts. Lesson 070 has products of its own.
NAMES = {
    HEAD: re.compile(r"^head_kernel"),
    PRODUCTS: re.compile(r"^linear_kernel"),
    NORMS: re.compile(r"layer_?norm|add_norm", re.IGNORECASE),
    ELEMENTWISE: re.compile(r"elementwise"),
    REST: re.compile(""),
}


class Spent(NamedTuple):
    """What a class of kernels takes of a step."""

    kernels: int
    us: float


def class_of(kernel: Kernel) -> str:
    """One of `CLASSES`; the product with the vocabulary counts as one of a layer's."""
    return KINDS.get(kernel.kind) or next(name for name, pattern in NAMES.items() if pattern.search(kernel.name))


def spent_by_class(timeline: Timeline) -> dict[str, Spent]:
    """The kernels of a step by class, in the order of `CLASSES`, those that it has, and last `GAPS`.

    The gaps are what remains of a step that no profiler watches. They stand for as many kernels as there are in all: in
    a replayed step a gap follows each.
    """
    head = max((k for k in timeline.kernels if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
    found: dict[str, list[float]] = {name: [] for name in CLASSES}
    for kernel in timeline.kernels:
        found[HEAD if kernel is head else class_of(kernel)].append(kernel.duration_us)
    spent = {name: _spent(durations) for name, durations in found.items() if durations}
    return spent | {GAPS: Spent(len(timeline.kernels), max(0.0, round(timeline.plain_us - timeline.busy_us, 1)))}


def own_us(timeline: Timeline) -> list[float]:
    """Of each kernel of a step, the microseconds from the end of all before it, or from its start, to its own end."""
    return [kernel.duration_us for kernel in timeline.in_turn]


def whole_step(timeline: Timeline, layers: int) -> dict[str, Spent]:
    """The kernels of a step by class, as `spent_by_class`, each with its `own_us`, and of all layers.

    The window of the profiler may cut some of a replayed step's kernels off, and begin inside a layer. From one kernel
    of attention to the next there is one layer's worth of all others, unless the step ends between them: each layer
    gets as many kernels of a class as the median of these layers has, of the mean length. Of a class that most layers
    have none of, none is a layer's. Last come the `GAPS`, as what remains of the step without a profiler, with no
    kernels. Raises `ValueError` for a step without a whole layer.
    """
    head = max((k for k in timeline.kernels if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
    names = [HEAD if kernel is head else class_of(kernel) for kernel in timeline.kernels]
    seen = [place for place, name in enumerate(names) if name == ATTENTION]
    whole = [layer for begin, end in pairwise(seen) if HEAD not in (layer := names[begin:end])]
    if not whole:
        raise ValueError("the step has no whole layer, from one kernel of attention to the next: give a step of a GPU")
    found: dict[str, list[float]] = {name: [] for name in CLASSES}
    for name, us in zip(names, own_us(timeline), strict=True):
        found[name].append(us)
    spent = {name: _of_all(each, layers * _in_a_layer(name, whole)) for name, each in found.items() if each}
    gaps = timeline.plain_us - sum(one.us for one in spent.values())
    return spent | {GAPS: Spent(0, max(0.0, round(gaps, 1)))}


def _in_a_layer(name: str, whole: Sequence[Sequence[str]]) -> int:
    """How many kernels of a class most layers have, of the classes of their kernels."""
    return median_high(layer.count(name) for layer in whole) if name in OF_LAYERS else 0


def _of_all(own: Sequence[float], number: int) -> Spent:
    """So many kernels, of which these were seen; 0 for those that are as many as were seen."""
    return Spent(number, round(sum(own) / len(own) * number, 1)) if number else _spent(own)


def _spent(durations: Sequence[float]) -> Spent:
    return Spent(len(durations), round(sum(durations), 1))
