"""Kernels of a recorded step in a row, as `early_start_simulation` has simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from ..checks import is_count, require, shown
from .early_start_simulation import RUN, Row, Span
from .timeline import Kernel, Timeline

FIRST = "attention"  # the kind of the kernel that each layer is taken to begin with


def recorded_row(timeline: Timeline, names: Sequence[str], layers: int = 2) -> Row:
    """Layers from the middle of a recorded step, in microseconds from the end of the kernel before them.

    names: of the kernels of a layer, from its attention to the last one before the next attention. What a kernel does
    in its time is not recorded: if it starts early, its wait is a part of that. What lies before the end of the kernel
    before them is left out, so that layers in a row add up. Raises `ConfigError` for a step that has not so many whole
    layers.
    """
    require(is_count(layers), f"layers is {shown(layers)}: give 1 or more")
    whole = _whole_layers(timeline, names)
    require(len(whole) >= layers, f"{len(whole)} whole layers in this step: give at most as many, and not {layers}")
    begin = (len(whole) - layers) // 2
    kernels = [kernel for layer in whole[begin : begin + layers] for kernel in layer]
    earlier = timeline.kernels[: timeline.kernels.index(kernels[0])]
    zero = max(map(_end, earlier), default=kernels[0].start_us)
    spans = [Span(RUN, number, max(0.0, k.start_us - zero), _end(k) - zero) for number, k in enumerate(kernels)]
    return Row(tuple(names) * layers, tuple(spans))


def added_us(timeline: Timeline, names: Sequence[str]) -> dict[str, float]:
    """What each kernel of a layer adds to the step: from the end of the one before it to its own, in microseconds.

    The median over all whole layers of the step but the first. Kernels may overlap: all of these together are the time
    of a layer. Raises `ConfigError` for a step with fewer than two whole layers.
    """
    whole = _whole_layers(timeline, names)
    require(len(whole) > 1, f"{len(whole)} whole layers in this step: give one with 2 or more")
    found = {}
    for place, name in enumerate(names):
        before = [layer[place - 1] if place else whole[number][-1] for number, layer in enumerate(whole[1:])]
        found[name] = median(_end(layer[place]) - _end(one) for layer, one in zip(whole[1:], before, strict=True))
    return found


def _whole_layers(timeline: Timeline, names: Sequence[str]) -> list[list[Kernel]]:
    """Neighbouring layers that have as many kernels as names, the longest run of them."""
    begins = [number for number, kernel in enumerate(timeline.kernels) if kernel.kind == FIRST]
    runs: list[list[list[Kernel]]] = [[]]
    for begin, end in pairwise(begins):
        if end - begin == len(names):
            runs[-1].append(list(timeline.kernels[begin:end]))
        else:
            runs.append([])
    return max(runs, key=len)


def _end(kernel: Kernel) -> float:
    return kernel.start_us + kernel.duration_us
