"""Pictures of chunked prefill: what budgets are worth, and the tokens of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .colours import INK, OWNER_COLOURS, SIDES
from .labels import SMALL, colour_legend

FIGURES = {"ITL p99": "ms", "tokens/s": "", "TTFT p99": "ms"}


def draw_budgets(figure: Figure, rows: pd.DataFrame) -> None:
    """A panel for each figure, with every run as a dot; the medians over the runs of each budget stand on top.

    rows: one recording of `records.noted.noted("chunked")`. Figures of 8.2 x 3.2 inches suit it.
    """
    runs = dict(list(rows.groupby("budget", sort=False)))
    side_of = {"none": "before", "control": "control"}
    for ax, (metric, unit) in zip(figure.subplots(1, len(FIGURES)), FIGURES.items(), strict=True):
        for place, (name, one) in enumerate(runs.items()):
            style, values = SIDES[side_of.get(str(name), "after")], one[metric]
            ax.bar([place], [values.median()], 0.7, color=style["color"], alpha=0.45)
            ax.plot([place] * len(values), values, **style, linestyle="none", markersize=3, alpha=0.7)
            told = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL, "color": INK}
            middle = values.median()
            text = f"{middle:.3g}" if middle < 1000 else f"{middle / 1000:.1f}k"
            ax.annotate(text, (place, 1), (0, -12), xycoords=ax.get_xaxis_transform(), **told)
        ax.set_xticks(range(len(runs)), ["none\nagain" if n == "control" else str(n) for n in runs], fontsize=SMALL)
        ax.set_title(f"{metric}{f' ({unit})' if unit else ''}", fontsize=SMALL + 1)
        ax.set_xlabel("budget, tokens a step", fontsize=SMALL)
        ax.margins(y=0.15)


def draw_steps(ax: Axes, steps: Sequence[Mapping[str, int]], newcomer: str, title: str) -> None:
    """A bar for each step, with its tokens: of the sessions that decode below, of the newcomer's prompt above.

    steps: what each session has computed in each step.
    """
    decode = [sum(tokens for name, tokens in step.items() if name != newcomer or tokens == 1) for step in steps]
    prompt = [sum(step.values()) - tokens for step, tokens in zip(steps, decode, strict=True)]
    places = range(1, len(steps) + 1)
    colours = {"of the others": OWNER_COLOURS[0], f"of {newcomer}'s prompt": OWNER_COLOURS[1]}
    ax.bar(places, decode, 0.8, color=colours["of the others"])
    ax.bar(places, prompt, 0.8, bottom=decode, color=colours[f"of {newcomer}'s prompt"])
    for place, tokens in zip(places, prompt, strict=True):
        if tokens:
            ax.annotate(str(tokens), (place, tokens), (0, 6), textcoords="offset points", ha="center", fontsize=SMALL)
    ax.set_title(title, fontsize=SMALL + 1)
    ax.set_xlabel("step", fontsize=SMALL)
    ax.set_ylabel("tokens", fontsize=SMALL)
    ax.margins(y=0.15)
    colour_legend(ax, colours, ncols=2)
