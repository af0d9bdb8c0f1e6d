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

    The window of the profiler may cut some of a replayed step's kernels off. As there is one kernel of attention in a
    layer, their number says how much of the layers was seen. A step of which all were seen stays as it is; in any other
    each layer gets as many of the other kernels as they had on the average, rounded, and of kernels that are fewer than
    layers, none is a layer's. Last come the `GAPS`, as what remains of the step without a profiler, with no kernels.
    Raises `ValueError` for a step without attention.
    """
    seen = sum(class_of(kernel) == ATTENTION for kernel in timeline.kernels)
    if not seen:
        raise ValueError("the step has no kernel of attention: give a step of a GPU")
    head = max((k for k in timeline.kernels if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
    found: dict[str, list[float]] = {name: [] for name in CLASSES}
    for kernel, us in zip(timeline.kernels, own_us(timeline), strict=True):
        found[HEAD if kernel is head else class_of(kernel)].append(us)
    spent = {name: _of_all(each, layers, seen) if name in OF_LAYERS else _spent(each) for name, each in found.items()}
    spent = {name: one for name, one in spent.items() if one.kernels}
    gaps = timeline.plain_us - sum(one.us for one in spent.values())
    return spent | {GAPS: Spent(0, max(0.0, round(gaps, 1)))}


def _of_all(own: Sequence[float], layers: int, seen: int) -> Spent:
    """Kernels of so many layers, of which some were seen."""
    each = round(len(own) / seen) if seen != layers else 0
    return Spent(each * layers, round(sum(own) / len(own) * each * layers, 1)) if each else _spent(own)


def _spent(durations: Sequence[float]) -> Spent:
    return Spent(len(durations), round(sum(durations), 1))
