"""A whole replayed step of the device, put together from what a profiler's window shows of replays (lesson 067 on).

A window begins and ends somewhere in a replay, so some layers are cut off. All layers have the same kernels: one that
was not seen is taken to be like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

from ..checks import is_count, require, shown
from .timeline import STEP, Kernel, Range, Timeline

TO_HOST = "_to_host"  # begins the name of the kernel that writes the tokens


def replayed_step(timeline: Timeline, layers: int) -> Timeline:
    """The device's part of a step of so many layers, from its first kernel to that of the next step.

    timeline: a window with the border of two steps and one whole layer or more. Layers that it has cut off are copies
    of the one whose time is the median. `step_us` is the time from one step to the next under the profiler, and
    `plain_us` stays what it was without. Raises `ConfigError` for a window that lacks one of these.
    """
    require(is_count(layers), f"layers is {shown(layers)}: give 1 or more")
    begins = [number for number, kernel in enumerate(timeline.kernels) if kernel.kind == "attention"]
    groups = [timeline.kernels[begin : end + 1] for begin, end in pairwise(begins)]  # each with the next attention
    borders = [number for number, group in enumerate(groups) if any(map(_takes_tokens, group))]
    require(len(borders) == 1, "no border of two steps in this window: give a recorded step that was replayed")
    border, whole = groups[borders[0]], groups[: borders[0]] + groups[borders[0] + 1 :]
    require(len(whole) > 0, "no whole layer in this window: give one with two kernels of attention in a row")
    first = 1 + max(number for number, kernel in enumerate(border) if _takes_tokens(kernel))
    middle = median_low(_length(group) for group in whole)
    typical = next(group for group in whole if _length(group) == middle)
    inside = [*whole[: layers - 1], *[typical] * (layers - 1 - len(whole))]
    kernels: list[Kernel] = []
    end = 0.0
    for part in (border[first:], *inside, border[: first + 1]):
        shift = end - part[0].start_us
        kernels += [kernel._replace(start_us=kernel.start_us + shift) for kernel in part[:-1]]
        end += _length(part)
    return timeline._replace(ranges=(Range(STEP, 0.0, end),), kernels=tuple(kernels))


def _takes_tokens(kernel: Kernel) -> bool:
    """Whether it is one of those that come after the choice of the tokens, and bring them to the host."""
    return kernel.kind == "copy" or kernel.name.startswith(TO_HOST)


def _length(kernels: Sequence[Kernel]) -> float:
    """From the start of the first to that of the last."""
    return kernels[-1].start_us - kernels[0].start_us
