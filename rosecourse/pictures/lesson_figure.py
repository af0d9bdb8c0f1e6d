"""The figure of a lesson: throughput and inter-token latencies, before and after, recorded or measured here."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..measure.compare import SAME, Comparison
from ..measure.metrics import UNITS
from ..measure.samples import Samples, figure_name
from .colours import INK, SIDES
from .labels import SMALL

PANELS = [("total throughput", "p50"), ("ITL", "p50"), ("ITL", "p95"), ("ITL", "p99")]
NAMES = {"control": f"before again\n({SAME})"}


def lesson_figure(figure: Figure, comparison: Comparison, title: str, yours: Samples | None = None) -> None:
    """A panel for each figure: the median over the runs of each side, with its 95 % interval, and every run as a dot.

    The control is grey: what differs from it by less than it differs from `before` is the machine's doing. yours: the
    runs of a reader's part, a further series. 8.2 x 3.6 inches with `layout="constrained"` suit it.
    """
    sides = [*comparison.all_sides, *([yours] if yours else [])]
    claim = comparison.claim(comparison.speedup, "faster", "slower")
    figure.suptitle(f"{title}\n{claim}\n{comparison.conditions.device}", fontsize="medium")
    for ax, (metric, statistic) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _panel(ax, sides, metric, statistic)
    handles = {NAMES.get(side.name, side.name): bar for side, bar in zip(sides, figure.axes[0].patches, strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(sides), frameon=False)


def _panel(ax: Axes, sides: Sequence[Samples], metric: str, statistic: str) -> None:
    for place, side in enumerate(sides):
        style, middle = SIDES[side.name], side.interval(metric, statistic)
        values = [one.figure(metric, statistic) for one in side.each_run]
        ax.bar([place], [middle.value], 0.7, color=style["color"], alpha=0.45)
        ax.plot([place] * len(values), values, **style, linestyle="none", markersize=3, alpha=0.7)
        errors = [[middle.value - middle.low], [middle.high - middle.value]]
        ax.errorbar([place + 0.2], [middle.value], errors, color=INK, capsize=3, linewidth=1.2)
        digits = ",.0f" if UNITS[metric] == "tokens/s" else ".2f"
        above = (place, max(middle.high, *values))
        text = format(middle.value, digits)
        ax.annotate(text, above, (0, 4), textcoords="offset points", ha="center", fontsize=SMALL, color=INK)
    ax.set_title(f"{figure_name(metric, statistic).removeprefix('total ')}\n({UNITS[metric]})", fontsize=SMALL + 1)
    ax.set_xticks([])
    ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
    ax.tick_params(axis="y", labelsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
