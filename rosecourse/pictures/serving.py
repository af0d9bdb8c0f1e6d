"""Pictures of a server under load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .colours import SIDES
from .labels import SMALL


def draw_serving(figure: Figure, rows: pd.DataFrame) -> None:
    """TTFT, ITL and throughput over the rate of requests.

    rows: of `measure.serving.measure_rates`; those of two servers have a column `server`, the one to look at first.
    8.2 x 3 inches suit it.
    """
    servers = [*rows.groupby("server", sort=False)] if "server" in rows else [("", rows)]
    panels = {"TTFT (ms)": ("TTFT p50", "TTFT p99"), "ITL (ms)": ("ITL p50", "ITL p99"), "tokens/s": ("tokens/s",)}
    axes = figure.subplots(1, len(panels))
    for ax, (title, columns) in zip(axes, panels.items(), strict=True):
        for (name, of_server), side in zip(servers, ("after", "before"), strict=False):
            for column, line in zip(columns, ("-", ":"), strict=False):
                label = " ".join([name, *column.split()[1:]]).strip()
                ax.plot(of_server["requests/s"], of_server[column], **SIDES[side], linestyle=line, label=label)
        ax.set_title(title, fontsize=SMALL + 1)
        ax.set_xlabel("requests/s", fontsize=SMALL)
        ax.set_xscale("log", base=2)
        rates = rows["requests/s"].unique()
        ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
        ax.set_ylim(0)
        ax.tick_params(labelsize=SMALL)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=SMALL)


def draw_messages(ax: Axes, steps: Sequence[Any]) -> None:
    """How many tokens each message of an engine process has; a request's first token is lighter.

    steps: `serving.messages.Step` of each. 8.2 x 2.6 inches suit it.
    """
    seen: set[int] = set()
    first, later = [], []
    for step in steps:
        numbers = [number for number, *_ in step.tokens]
        first.append(len({*numbers} - seen))
        later.append(len(numbers) - first[-1])
        seen |= {*numbers}
    places = range(1, len(steps) + 1)
    ax.bar(places, later, 0.8, color=SIDES["after"]["color"], label="later tokens")
    ax.bar(places, first, 0.8, bottom=later, color=SIDES["after"]["color"], alpha=0.4, label="first tokens")
    ax.set(xlabel="message", ylabel="tokens", title=f"{sum(first + later)} tokens in {len(steps)} messages")
    ax.legend(frameon=False, fontsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
