"""The style sheet of all pictures: what each colour means, and how before and after, parts and blocks are drawn.

Within pictures of the cache, and within plots, a colour means one thing. Both are on white, in a dark theme too. Okabe
and Ito's colours and Tol's can be told apart with the common kinds of colour blindness; their yellows are left out.
"""

from __future__ import annotations

from typing import Any

INK, FAINT_INK, LINE = "#333333", "#595959", "#8C8C8C"

# Pictures of the cache: sessions, those that differ most first; then what is no session.
OWNER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#882255", "#000000")
OTHER_COLOUR = "#8C8C8C"  # a session without a name here
SHARED = "#C8C8C8"  # of several sessions, or of none
USED, EMPTY = "#FFFFFF", "#ECEFF1"  # somebody reads the cell; nobody does
BY_DEVICE = "#CDE7F7"  # the device has changed the cell
WRONG = "#D55E00"  # an outline or an arrow where something is wrong; other outlines and arrows are of INK
HEADS = ("#DDCC77", "#AA4499", "#BBE3D5")  # attention heads

# Plots: the parts of a step.
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

# Plots: kinds of kernels; whatever the append launches counts as append.
KIND_COLOURS = {
    "attention": "#009E73",
    "append": COLOURS["kv_append"],
    "matrix": "#000000",
    "copy": "#56B4E9",
    "other": "#999999",
}

# Plots: sides of a comparison, as keyword arguments of matplotlib. Before is light and round, after dark and square:
# they differ without any colour too.
BEFORE: dict[str, Any] = {"color": "#C47A00", "marker": "o"}
AFTER: dict[str, Any] = {"color": "#005A94", "marker": "s"}
SIDES: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "control": {"color": "#8C8C8C", "marker": "D"},
    "after": AFTER,
    "yours": {"color": "#00795A", "marker": "^"},
}
# After is drawn last, thinner and with gaps, so that both can be seen where one lies on the other.
LINES: dict[str, dict[str, Any]] = {
    "before": {"color": BEFORE["color"], "linestyle": "-", "linewidth": 2.6},
    "after": {"color": AFTER["color"], "linestyle": (0, (4, 1.6)), "linewidth": 1.1},
}
BOUNDARY: dict[str, Any] = {"color": "#707070", "linewidth": 1.1, "linestyle": ":", "label": "a new block begins"}


def text_on(fill: str) -> str:
    """Black or white, whichever can be read better on a colour `#RRGGBB`: by WCAG's relative luminance."""
    parts = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#FFFFFF"
