"""What a recorded decode step spends its time on: its kernels by what they do for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
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

KINDS = {"attention": ATTENTION, "append": APPEND, "copy": COPIES, "matrix": PRODUCTS}
# The other kernels, by their names; the first that fits counts.
NAMES = {
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


def _spent(durations: Sequence[float]) -> Spent:
    return Spent(len(durations), round(sum(durations), 1))
