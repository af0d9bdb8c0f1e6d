"""Where in a layer the kernels of a recorded step stand: told by their order, since a product's name does not say it.

After attention come three products, and the fourth is that of the next layer to q, k and v, or that with the
vocabulary. Norms belong to the product after them, and what puts the parts of a product together to the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from .kernel_classes import HEAD, NORMS, class_of
from .timeline import Kernel, Timeline

QKV = "norm, q, k, v"
ATTENTION = "attention, append"
PROJECT = "project, sum"
WIDEN = "norm, widen, GELU"
NARROW = "narrow, sum"
VOCABULARY = "norm, vocabulary"
PLACES = (QKV, ATTENTION, PROJECT, WIDEN, NARROW, VOCABULARY)
OF_A_LAYER = PLACES[:-1]

REDUCE = re.compile(r"reduce", re.IGNORECASE)  # of the parts of a product, by the library


class Placed(NamedTuple):
    """The kernels at one place: how many there are in a layer, and the microseconds of all of them, both medians."""

    kernels: float
    us: float


def spent_by_place(timeline: Timeline) -> dict[str, Placed]:
    """The kernels around one product or attention, in the order of `PLACES`, those that the step has.

    What a profiler's window shows before the first attention is left out: it may be the end of a layer.
    """
    groups: dict[str, list[list[float]]] = {}
    for place, kernels in _groups(timeline):
        groups.setdefault(place, []).append([kernel.duration_us for kernel in kernels])
    medians = {
        place: Placed(median(map(len, found)), round(median(map(sum, found)), 2)) for place, found in groups.items()
    }
    return {place: medians[place] for place in PLACES if place in medians}


def _groups(timeline: Timeline) -> Iterator[tuple[str, list[Kernel]]]:
    """Each place with its kernels, in the order of the step."""
    head = max((k for k in timeline.kernels if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
    after_attention: Iterator[str] = iter(
        ()
    )  # the places of the products to come; nothing is known before the first attention
    found: tuple[str, list[Kernel]] | None = None
    waiting: list[Kernel] = []  # norms
    for kernel in timeline.kernels:
        if kernel.kind == "attention":
            after_attention = iter((PROJECT, WIDEN, NARROW, QKV))
            place: str | None = ATTENTION
        elif kernel.kind == "matrix" and found is not None and REDUCE.search(kernel.name):
            found[1].append(kernel)
            continue
        elif kernel.kind == "matrix":
            place = HEAD if kernel is head else next(after_attention, None)
        else:
            waiting = [*waiting, kernel] if class_of(kernel) == NORMS else waiting
            continue
        if found is not None:
            yield found
        found, waiting = ((VOCABULARY if place == HEAD else place, [*waiting, kernel]) if place else None), []
    if found is not None:
        yield found
