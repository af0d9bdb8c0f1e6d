"""The device's part of whole replayed steps, one below the other, with the time in which nothing runs left white."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..measure.timeline import KIND_LABELS, Timeline
from .colours import INK, KIND_COLOURS
from .labels import BEHIND, SMALL

LANE, ROOM = 0.8, 1.3  # heights: of the kernels, and of the two lines above them


def draw_replays(ax: Axes, steps: Mapping[str, Timeline], title: str) -> None:
    """Each step's kernels in turn, from the start of the first one to that of the next step; one scale.

    steps: by name, as `replayed_step` makes them. The longest matrix product, that with the vocabulary, is marked.
    Figures of 8.2 x 3.5 inches with `layout="constrained"` suit it.
    """
    for number, (name, step) in enumerate(steps.items()):
        top = number * (ROOM + LANE) + ROOM
        ax.text(0, top - 0.12, _headline(name, step), va="bottom", color=INK, fontsize=SMALL, linespacing=1.3)
        ax.vlines([0, step.step_us], top - 0.05, top + LANE + 0.05, color=INK, linewidth=0.8)
        for kind, colour in KIND_COLOURS.items():
            bars = [(k.start_us, k.duration_us) for k in step.in_turn if k.kind == kind]
            ax.broken_barh(bars, (top, LANE), facecolor=colour, edgecolor="none", linewidth=0, snap=False)
        head = max((k for k in step.in_turn if k.kind == "matrix"), key=lambda k: k.duration_us, default=None)
        if head is not None:
            middle = head.start_us + head.duration_us / 2
            ax.annotate("vocabulary", (middle, top + LANE), (0, -7), ha="center", color=INK, **BEHIND)
    kinds = [kind for kind in KIND_LABELS if any(k.kind == kind for one in steps.values() for k in one.kernels)]
    handles = [Patch(color=KIND_COLOURS[kind], label=KIND_LABELS[kind]) for kind in kinds]
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=len(kinds), frameon=False, fontsize=SMALL
    )
    longest = max(step.step_us for step in steps.values())
    ax.set(title=title, xlabel="µs since the start of the step, with the profiler on", xlim=(0, 1.01 * longest))
    ax.set(ylim=(len(steps) * (ROOM + LANE) + 0.35, 0), yticks=[])
    ax.tick_params(axis="x", labelsize=SMALL)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _headline(name: str, step: Timeline) -> str:
    """The time under the profiler and without it, and how much of it nothing runs."""
    idle = step.step_us - step.busy_us
    took = f"{name}: {step.step_us:.0f} µs with the profiler ({step.plain_us:.0f} without), {len(step.kernels)} kernels"
    return f"{took} and copies\nnothing runs for {idle:.0f} µs of it, {idle / step.step_us:.0%}"
