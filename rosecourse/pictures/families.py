"""Pictures of several models: the ladder on each of them, and what part of a step's bytes is K and V."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..measure.floor import kv_bytes_per_position, weight_bytes
from ..models.shape import ModelShape
from .colours import INK, OWNER_COLOURS, SIDES
from .labels import BEHIND, SMALL
from .steps import name_rows

ROOM = 1.45  # times the longest bar
MOST = 7  # powers of ten of positions


def draw_families(figure: Figure, rows: pd.DataFrame) -> None:
    """A panel for each model, with a bar for each lesson: tokens/s, from the lowest to the highest run.

    rows: of `records.noted.noted("families")`, with one workload. Figures in which a row has 0.25 inches suit it.
    """
    models = list(rows.groupby("model", sort=False))
    for n, (ax, (model, one)) in enumerate(zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True)):
        rates = one["tokens/s"].to_numpy()
        name_rows(ax, list(one.lesson) if n == 0 else [""] * len(one))
        errors = np.stack([rates - one.lowest, one.highest - rates])
        ax.barh(range(len(one)), rates, 0.72, color=SIDES["after"]["color"], xerr=errors, ecolor=INK)
        shown = zip(one.highest, rates, one["share of the floor, %"], strict=True)
        for row, (high, rate, share) in enumerate(shown):
            ax.annotate(f"{rate:,.0f}, {share:.0f} %", (high, row), (4, 0), color=INK, **BEHIND)
        ax.set_xlim(0, ROOM * one.highest.max())
        ax.locator_params(axis="x", nbins=4)
        ax.set_title(f"{model}, {one.workload.iloc[0]}\ntokens/s, and share of the floor", fontsize=SMALL + 1)


def draw_kv_shares(ax: Axes, shapes: Mapping[str, ModelShape], dtype: torch.dtype) -> None:
    """The share of a step's bytes that is K and V, by the positions in the cache: batch times context.

    The dots are where K and V are as many bytes as the weights. 8.2 x 3.6 inches suit it.
    """
    positions = np.logspace(2, MOST, 200)
    for (name, shape), colour in zip(shapes.items(), OWNER_COLOURS, strict=False):
        weights, each = weight_bytes(shape, dtype), kv_bytes_per_position(shape, dtype)
        ax.plot(positions, 100 * positions * each / (weights + positions * each), color=colour, label=name)
        ax.plot([weights / each], [50], "o", color=colour)
    ax.set(xscale="log", ylim=(0, 100), xlabel="positions in the cache: batch x context")
    ax.set_ylabel("K and V, % of the bytes of a step", fontsize=SMALL)
    ax.set_title("Where the floor moves: weights first, then K and V", fontsize=SMALL + 1)
    ax.legend(frameon=False, fontsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)
