"""Where the time of decode steps goes: engines side by side, one lesson's effect, and the whole ladder."""

from __future__ import annotations

from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import ConfigError
from ..lessons import lesson
from ..measure.anatomy import LadderSteps, StepTimes
from ..measure.stages import touched
from .bars import Bar, draw_bars
from .labels import points_of_a_unit

ZOOM = 3  # rungs whose step is this many times shorter than the longest are drawn again, on a scale of their own
AROUND = 1.05  # inches of a panel's title, legend and axis


def step_anatomies(ax: Axes, times: StepTimes, title: str) -> None:
    """A bar for each engine, from the top: the parts of a decode step, named in place, and their sum.

    Figures of 8.2 x 2 inches suit one engine, 8.2 x 3 inches two, with `layout="constrained"`.
    """
    ax.set_title(title)
    draw_bars(ax, [Bar(name, times.milliseconds(name)) for name in times.seconds])


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
    ax.set_title(f"{title}\n{_conditions(steps)}")
    bars = [_bar(steps, rung, name, True) for rung, name in ((before, "before"), (after, "after"))]
    draw_bars(ax, [Bar(b.name, b.parts, b.busy_ms, b.kernels, changed) for b in bars], steps.floor_ms)
    ax.set_xlabel("ms a step (mean of the turns); crosshatched: what changes")


def ladder_of_steps(figure: Figure, steps: LadderSteps, title: str) -> None:
    """A bar for each rung of the ladder: the parts of the host's step, below it the device's, and the floor.

    Steps that would be too short to read are drawn again below, on a scale of their own. The function draws on the
    whole figure, made with `layout="constrained"`, and sets its height; 9 inches suit as width.
    """
    panels = _panels(steps)
    heights = [sum(bar.height for bar in bars) + AROUND for bars in panels]
    figure.set_size_inches(figure.get_figwidth(), sum(heights) + 0.6)
    figure.suptitle(f"{title}\n{_conditions(steps)}")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, bars in zip(axes, panels, strict=True):
        ax.set_title("all rungs" if ax is axes[0] else f"steps up to {max(bar.total for bar in bars):.2f} ms again")
        draw_bars(ax, bars, steps.floor_ms)
    one, *others = map(points_of_a_unit, axes)  # not before: the panels share the figure's width
    for ax, wider in zip(axes[1:], others, strict=True):
        ax.title.set_text(f"{ax.get_title()}, {wider / one:.1f} times as wide")


def _panels(steps: LadderSteps) -> list[list[Bar]]:
    """All rungs, then those that are too short there, and so on: a rung's parts are named where it is not too short."""
    total = {rung: steps.times.step_ms(rung) for rung in steps.times.seconds}
    rungs, panels = list(total), []
    while rungs:
        longest = max(total[rung] for rung in rungs)
        short = [rung for rung in rungs if total[rung] * ZOOM < longest]
        panels.append([_bar(steps, rung, _name(steps, rung, rung not in short), rung not in short) for rung in rungs])
        rungs = short
    return panels


def _bar(steps: LadderSteps, rung: str, name: str, labelled: bool) -> Bar:
    parts = steps.times.milliseconds(rung)
    return Bar(name, parts, steps.busy_ms[rung], steps.kernels[rung], labelled=labelled)


def _name(steps: LadderSteps, rung: str, long: bool) -> str:
    return f"{rung}\n{fill(steps.titles[rung], 18)}" if long else rung


def _conditions(steps: LadderSteps) -> str:
    return f"{steps.batch} requests with a mean of {steps.context} tokens each, {steps.device}"
