"""Where the time of decode steps goes: engines side by side, one lesson's effect, and the whole ladder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import ConfigError
from ..lessons import lesson
from ..measure.anatomy import PART_NAMES, LadderSteps, StepTimes
from ..measure.stages import touched
from .colours import COLOURS, INK, text_on
from .labels import SMALL, fits, legend_below
from .stacked import draw_parts

ZOOM = 3  # rungs whose step is this many times shorter than the longest are drawn again, on a scale of their own
ROW, AROUND = 0.42, 0.85  # inches: of a bar, and of a panel's title and axis
# The device's time is a sum over kernels that are spread over the step: an open bar, so that it does not look like a
# part of the host's, which begins at 0 and ends there.
DEVICE: dict[str, Any] = {"facecolor": "white", "edgecolor": INK, "hatch": "////", "linewidth": 0.8}
CHANGED: dict[str, Any] = {"facecolor": "none", "edgecolor": "black", "hatch": "xx", "linewidth": 1.8}
HOST = 0.5  # the height of the host's bar, in rows

Milliseconds = Mapping[str, Mapping[str, float]]  # bar -> part -> time


def step_anatomies(ax: Axes, times: StepTimes, title: str) -> None:
    """A bar for each engine, from the top: the parts of a decode step, their sum, and a legend with all times.

    Figures of 8.2 x 2 inches suit one engine, 8.2 x 3 inches two, with `layout="constrained"`.
    """
    bars = {name: times.milliseconds(name) for name in times.seconds}
    _draw(ax, bars, [f"{times.step_ms(name):.2f} ms" for name in bars], _with_times(bars))
    ax.set_title(title)
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def effect(ax: Axes, steps: LadderSteps, before: str, after: str, title: str) -> None:
    """What the lessons from the rung `before` to the rung `after` took away: both steps on one scale.

    The stages whose times these lessons changed are outlined and hatched. Figures of 8.2 x 3.2 inches suit it. Raises
    `ConfigError` for rungs that were not measured, or that are not in this order.
    """
    rungs = list(steps.times.seconds)
    if before not in rungs or after not in rungs[rungs.index(before) + 1 :]:
        raise ConfigError(f"there is no way up from {before!r:.20} to {after!r:.20}: the rungs are {', '.join(rungs)}")
    passed = rungs[rungs.index(before) + 1 : rungs.index(after) + 1]
    replaced = {part for number in passed for part in lesson(number).changes}
    changed = touched(list(steps.times.seconds[before]), list(steps.times.seconds[after]), replaced)
    bars = {name: steps.times.milliseconds(rung) for name, rung in (("before", before), ("after", after))}
    _draw_rungs(ax, steps, [before, after], bars, _with_times(bars))
    for row, parts in enumerate(bars.values()):
        for number, part in enumerate(parts):
            if part in changed:
                ax.barh(row, parts[part], HOST, left=sum([*parts.values()][:number]), **CHANGED)
    ax.set(title=f"{title}\n{_conditions(steps)}", xlabel="ms a step (mean of the turns); crosshatched: what changes")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def ladder_of_steps(figure: Figure, steps: LadderSteps, title: str) -> None:
    """A bar for each rung of the ladder: the parts of the host's step, below it the device's, and the floor.

    Steps that would be too short to read are drawn again below, on a scale of their own. The function draws on the
    whole figure, made with `layout="constrained"`, and sets its height; 9 inches suit as width.
    """
    panels = _panels(steps)
    heights = [ROW * len(rungs) + AROUND for rungs in panels]
    figure.set_size_inches(figure.get_figwidth(), sum(heights) + 1.2)
    figure.suptitle(f"{title}\n{_conditions(steps)}")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    names = {part: PART_NAMES[part] for part in steps.times.parts}
    for ax, rungs in zip(axes, panels, strict=True):
        bars = {fill(f"{rung} {steps.titles[rung]}", 24): steps.times.milliseconds(rung) for rung in rungs}
        _draw_rungs(ax, steps, rungs, bars, names)
        ax.set_title("all rungs" if ax is axes[0] else f"steps up to {steps.times.step_ms(rungs[0]):.2f} ms again")
    legend_below(axes[-1], axes[0].get_legend_handles_labels()[0], -0.25, ncols=2)


def _panels(steps: LadderSteps) -> list[list[str]]:
    """All rungs, then those that are too short to read there, and so on."""
    panels, rungs = [], list(steps.times.seconds)
    while rungs:
        panels.append(rungs)
        longest = max(map(steps.times.step_ms, rungs))
        rungs = [rung for rung in rungs if steps.times.step_ms(rung) * ZOOM < longest]
    return panels


def _with_times(bars: Milliseconds) -> dict[str, str]:
    """The parts' names for a legend, each with its time in every bar."""
    parts = [part for part in PART_NAMES if any(part in bar for bar in bars.values())]
    times = {part: [f"{bar[part]:.2f}" if part in bar else "–" for bar in bars.values()] for part in parts}
    return {part: f"{PART_NAMES[part]}: {' → '.join(told)} ms" for part, told in times.items()}


def _draw(ax: Axes, bars: Milliseconds, ends: Sequence[str], names: Mapping[str, str]) -> None:
    """The bars, with the time of a part on it where there is room. names: of the parts, for a legend."""
    there = [part for part in names if any(part in bar for bar in bars.values())]
    named = {name: {names[part]: ms for part, ms in parts.items()} for name, parts in bars.items()}
    colours = {names[part]: COLOURS[part] for part in there}
    for part, drawn in zip(there, draw_parts(ax, named, colours, ends, HOST), strict=True):
        told = [f"{one.get_width():.2f}" for one in drawn]
        fitting = [text if fits(ax, text, one.get_width()) else "" for text, one in zip(told, drawn, strict=True)]
        box = {"facecolor": COLOURS[part], "edgecolor": "none", "pad": 1}
        ink = text_on(COLOURS[part])
        ax.bar_label(drawn, fitting, label_type="center", fontsize=SMALL, color=ink, bbox=box, zorder=3)
    ax.set_xlabel("ms a step (mean of the turns)")


def _draw_rungs(
    ax: Axes, steps: LadderSteps, rungs: Sequence[str], bars: Milliseconds, names: Mapping[str, str]
) -> None:
    """The bars of these rungs, with the device's time below each of them, and the line of the floor."""
    busy = [steps.busy_ms[rung] for rung in rungs]
    device = [f"device {ms:.2f} ms, {steps.kernels[rung]:,} kernels" for rung, ms in zip(rungs, busy, strict=True)]
    totals = [f"{steps.times.step_ms(rung):.2f} ms" for rung in rungs]
    _draw(ax, bars, [f"{total}\n{told}" for total, told in zip(totals, device, strict=True)], names)
    below = [row + 0.37 for row in range(len(rungs))]
    ax.barh(below, busy, 0.16, label="device busy (kernels and copies)", **DEVICE)
    floor = f"floor {steps.floor_ms:.2f} ms: weights, K and V read once"
    ax.axvline(steps.floor_ms, color="black", linewidth=1.4, linestyle="--", label=floor)


def _conditions(steps: LadderSteps) -> str:
    return f"{steps.batch} requests with a mean of {steps.context} tokens each, {steps.device}"
