"""When the host launches the operations of a decode step: one by one, or all of them with one replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ..errors import ConfigError
from .colours import AFTER, INK
from .time_axis import Bar, draw_lanes

REPLAY = "replay"  # the name of a launch that launches all that a graph has recorded


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch. ms: since the start of the step; until_ms: when the call of a replay has come back."""

    name: str
    ms: float
    until_ms: float = 0.0


def draw_launches(ax: Axes, steps: Mapping[str, Sequence[Launched]], title: str) -> None:
    """A lane for each step, with a mark for each launch; a replay is a blue one, and a pale bar while it runs.

    steps: such as `before` and `after` -> the launches in their order. Figures of 8.2 x 3 inches with
    `layout="constrained"` suit it. Raises `ConfigError` for no steps or one without launches.
    """
    if not steps or not all(steps.values()):
        raise ConfigError("there is no launch to draw: give steps that have some")
    end = max(max(one.ms, one.until_ms) for launches in steps.values() for one in launches)
    sides: dict[str, dict[str, list[Bar]]] = {}
    for name, launches in steps.items():
        singles = [Bar(one.ms, 0.002 * end, INK) for one in launches if one.name != REPLAY]
        replays = [one for one in launches if one.name == REPLAY]
        pale = [Bar(one.ms, one.until_ms - one.ms, "#E0E0E0") for one in replays]
        marks = [Bar(one.ms, 0.006 * end, AFTER["color"]) for one in replays]
        sides[_headline(name, len(singles), len(replays))] = {"": [*pale, *marks, *singles]}
    draw_lanes(ax, sides, title, "ms since the start of the step")


def _headline(name: str, singles: int, replays: int) -> str:
    told = f"{name}: the host launches {singles:,} operation{'s' * (singles != 1)}"
    if replays:
        told += f" and {replays:,} replay{'s' * (replays != 1)}, which on a CPU runs its operations there (pale)"
    return told
