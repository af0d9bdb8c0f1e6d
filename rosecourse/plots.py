"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

# Okabe and Ito's colours, which the common kinds of colour blindness tell apart.
COLOURS = {
    "block_tables": "#0072B2",
    "forward": "#999999",
    "kv_append": "#D55E00",
    "rest": "#F0E442",
}
LABELS = {
    "block_tables": "block tables",
    "forward": "forward",
    "kv_append": "KV append",
    "rest": "sample and the rest",
}


def step_anatomy(ax: Axes, seconds_by_part: Mapping[str, Sequence[float]], title: str) -> None:
    """One bar: the median time of a decode step, cut into its parts. Input: seconds of each step, by part."""
    left = 0.0
    for part, seconds in seconds_by_part.items():
        width = 1e3 * float(np.median(seconds))
        ax.barh(
            [0], [width], left=left, color=COLOURS[part], edgecolor="white", label=f"{LABELS[part]}: {width:.2f} ms"
        )
        left += width
    ax.set(title=title, xlabel="ms per decode step (median)", yticks=[], ylim=(-0.5, 0.5), xlim=(0, left * 1.02))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=2, frameon=False)
    ax.spines[["top", "right", "left"]].set_visible(False)


def itl_along_steps(ax: Axes, itl_seconds: Sequence[float], first_position: int, block_size: int, title: str) -> None:
    """Inter-token latency against the position of the token, with the block boundaries marked.

    itl_seconds: the gap before each token of one request; first_position: the position whose K and V the first of
    these steps appended.
    """
    positions = np.arange(first_position, first_position + len(itl_seconds))
    gaps = 1e3 * np.asarray(itl_seconds)
    p50, p99 = np.percentile(gaps, [50, 99])
    for boundary in positions[positions % block_size == 0]:
        ax.axvline(boundary, color="#56B4E9", linewidth=1, linestyle=":", label="a new block begins")
    ax.plot(positions, gaps, color="#333333", linewidth=1)
    for value, name, style in ((p50, "p50", "-"), (p99, "p99", "--")):
        ax.axhline(value, color="#D55E00", linewidth=1, linestyle=style, label=f"{name} {value:.2f} ms")
    ax.set(title=title, xlabel="position in the sequence", ylabel="inter-token latency (ms)", ylim=(0, None))
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    ax.legend(unique.values(), unique.keys(), loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
