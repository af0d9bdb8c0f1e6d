"""When the host launches the operations of a decode step: one by one, or all of them with one replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from ..errors import ConfigError
from .colours import AFTER, COLOURS, INK
from .labels import SMALL

REPLAY = "replay"  # the name of a launch that launches all that a graph has recorded
LINE, ROOM = 1.0, 0.75  # heights: of a line of launches, and of the text above it


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch. ms: since the start of the step; until_ms: when the call of a replay has come back."""

    name: str
    ms: float
    until_ms: float = 0.0


def draw_launches(ax: Axes, steps: Mapping[str, Sequence[Launched]], title: str) -> None:
    """A line for each step, with a mark for each launch; a replay is one thick mark, and a pale bar while it runs.

    steps: such as `before` and `after` -> the launches in their order. Figures of 8.2 x 3 inches with
    `layout="constrained"` suit it. Raises `ConfigError` for no steps or one without launches.
    """
    if not steps or not all(steps.values()):
        raise ConfigError("there is no launch to draw: give steps that have some")
    end = max(max(one.ms, one.until_ms) for launches in steps.values() for one in launches)
    for number, (name, launches) in enumerate(steps.items()):
        top = number * (LINE + ROOM) + ROOM
        singles = [one.ms for one in launches if one.name != REPLAY]
        replays = [one for one in launches if one.name == REPLAY]
        ax.vlines(singles, top, top + LINE, color=INK, linewidth=0.9, label=f"{name}: launches")
        ax.vlines(
            [one.ms for one in replays], top, top + LINE, linewidth=4, color=AFTER["color"], label=f"{name}: replay"
        )
        for one in replays:
            ax.barh([top + LINE / 2], [one.until_ms - one.ms], LINE, left=one.ms, color=COLOURS["forward"], alpha=0.3)
        ax.text(0, top - 0.1, _headline(name, len(singles), len(replays)), va="bottom", color=INK, fontsize=SMALL)
    ax.set(title=title, xlabel="ms since the start of the step", xlim=(-0.01 * end, 1.02 * end))
    ax.set_ylim(len(steps) * (LINE + ROOM) + 0.1, 0)
    ax.set_yticks([])
    ax.spines[["top", "right", "left"]].set_visible(False)


def _headline(name: str, singles: int, replays: int) -> str:
    told = f"{name}: the host launches {singles:,} operation{'s' * (singles != 1)}"
    if replays:
        told += f" and {replays:,} replay{'s' * (replays != 1)}, which on a CPU runs its operations there (pale)"
    return told
