"""What a recorded decode step spends its time on: its kernels by what they do for the model."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

from .timeline import Kernel, Timeline

# The product that makes the logits reads more than any other, so it is the longest product of a step.
HEAD = "product with the vocabulary"
PRODUCTS = "products of the layers"
ATTENTION = "attention"
APPEND = "append of K and V"
NORMS = "layer norms"
ELEMENTWISE = "sums, GELU, others elementwise"
COPIES = "copies"
REST = "embedding, choice, the rest"
GAPS = "gaps between kernels"
CLASSES = (HEAD, PRODUCTS, ATTENTION, APPEND, NORMS, ELEMENTWISE, REST, COPIES)  # of kernels

KINDS = {"attention": ATTENTION, "append": APPEND, "copy": COPIES, "matrix": PRODUCTS}
# The other kernels, by their names; the first that fits counts. Lesson 070 has products of its own.
NAMES = {
    HEAD: re.compile(r"^head_kernel"),
    PRODUCTS: re.compile(r"^linear_kernel"),
    COPIES: re.compile(r"^memcpy"),  # of a graph, by the processors
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


def spent_by_class(step: Timeline) -> dict[str, Spent]:
    """The kernels of a step by class, in the order of `CLASSES`, each with its `own_us`; last come the `GAPS`.

    The gaps are the time in which no kernel ran, under the profiler, with no kernels. All of them together are the
    step. What counts as a sum of the layers, and is there less often than attention, copies the logits. A profiler's
    window of replays (lesson 067 on) is no whole step: give what `replayed_step` makes of it.
    """
    head = max((k for k in step.kernels if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
    found: dict[str, list[float]] = defaultdict(list)
    for kernel, us in zip(step.kernels, own_us(step), strict=True):
        found[HEAD if kernel is head else class_of(kernel)].append(us)
    if len(found[ELEMENTWISE]) < len(found[ATTENTION]):
        found[COPIES] += found.pop(ELEMENTWISE)
    spent = {name: Spent(len(found[name]), round(sum(found[name]), 1)) for name in CLASSES if found.get(name)}
    return spent | {GAPS: Spent(0, round(step.step_us - step.busy_us, 1))}


def own_us(timeline: Timeline) -> list[float]:
    """Of each kernel of a step, the microseconds from the end of all before it, or from its start, to its own end."""
    return [kernel.duration_us for kernel in timeline.in_turn]
