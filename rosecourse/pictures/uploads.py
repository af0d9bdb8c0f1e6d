"""How many bytes the host hands to the device in each decode step, and what has happened in that step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import ConfigError
from .colours import AFTER, BEFORE, INK

# The kinds of events, from the top: name, field of `Upload`, colour, shape.
EVENTS = (
    ("joins", "joined", "#009E73", "^"),
    ("new block", "new_blocks", INK, "|"),
    ("leaves", "left", "#D55E00", "v"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """One decode step: bytes to the device, and how many sessions joined, got a new last block, and left before it."""

    num_bytes: int
    joined: int
    new_blocks: int
    left: int


def uploads_along_steps(figure: Figure, before: Sequence[Upload], after: Sequence[Upload], title: str) -> None:
    """Two panels over the steps: bytes before, as a line, and after, as bars; and below them the events.

    The function draws on the whole figure, made with `layout="constrained"`; 8.2 x 4.6 inches suit it. Raises
    `ConfigError` for no steps, and where the two did not make the same steps.
    """
    if not after or [_events(one) for one in before] != [_events(one) for one in after]:
        raise ConfigError(f"{len(before)} and {len(after)} steps: give the same steps, 1 or more, of two engines")
    together, events = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    edges = np.arange(len(after) + 1) - 0.5
    together.stairs([one.num_bytes for one in after], edges, color=AFTER["color"], fill=True, label="after")
    together.stairs([one.num_bytes for one in before], edges, color=BEFORE["color"], linewidth=2.5, label="before")
    together.legend(frameon=False, ncols=2, loc="upper right")
    together.spines[["top", "right"]].set_visible(False)
    together.set(title=title, ylabel="bytes to the device")
    _draw_events(events, after)
    events.set_xlabel("decode step")


def _events(one: Upload) -> tuple[int, int, int]:
    return one.joined, one.new_blocks, one.left


def _draw_events(ax: Axes, uploads: Sequence[Upload]) -> None:
    """A line for each kind of event, with a mark at each step that has one."""
    for y, (name, field, colour, marker) in enumerate(EVENTS):
        at = [n for n, one in enumerate(uploads) if getattr(one, field)]
        ax.plot(at, [y] * len(at), marker, color=colour, markersize=7, label=name)
    ax.set_yticks(range(len(EVENTS)), [name for name, *_ in EVENTS])
    ax.set_ylim(len(EVENTS) - 0.4, -0.6)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(left=False)
