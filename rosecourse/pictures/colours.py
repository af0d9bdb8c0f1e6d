"""The colours of measurements, and the names of what they stand for."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours, which people with the common kinds of colour blindness can tell apart, with a violet in the
# place of their yellow, which cannot be seen on white.
COLOURS = {
    "place": "#CC79A7",
    "copy_blocks": "#56B4E9",
    "plan": "#009E73",
    "block_tables": "#0072B2",
    "forward": "#999999",
    "kv_append": "#D55E00",
    "runner": "#E69F00",
    "read": "#CCCCCC",
    "rest": "#9A86C8",
}

INK = "#333333"


def text_on(fill: str) -> str:
    """Black or white, whichever can be read better on a colour `#RRGGBB`: by WCAG's relative luminance."""
    parts = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"


# The styles are keyword arguments of matplotlib, each of a type of its own.
# Before is light and round, after dark and square: they differ without any colour too.
BEFORE: dict[str, Any] = {"color": "#C47A00", "marker": "o"}
AFTER: dict[str, Any] = {"color": "#005A94", "marker": "s"}
SIDES: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "control": {"color": "#8C8C8C", "marker": "D"},
    "after": AFTER,
    "yours": {"color": "#00795A", "marker": "^"},
}

# The boundaries of blocks, and the steps in which requests that started later begin theirs; both behind the curves.
BOUNDARY: dict[str, Any] = {
    "color": "#707070",
    "linewidth": 1.1,
    "linestyle": ":",
    "zorder": 0.5,
    "label": "a new block begins",
}
BAND: dict[str, Any] = {"color": "#DCEEF9", "linewidth": 0, "zorder": 0.4, "label": "other requests begin theirs"}

# Kinds of kernels; whatever the append launches counts as append.
KIND_COLOURS = {
    "attention": "#009E73",
    "append": COLOURS["kv_append"],
    "matrix": "#000000",
    "copy": "#56B4E9",
    "other": "#999999",
}
