"""What stands in a picture of matplotlib: its texts with their boxes, and whether they can be read."""

import itertools

from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.text import Text


def texts_drawn(ax):
    """Every text of the axes that is to be seen, with its box in pixels."""
    ax.figure.canvas.draw()
    legends = [child for child in ax.get_children() if hasattr(child, "get_texts")]
    found = [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label]
    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        found += [tick.label1 for tick in axis.get_major_ticks() if min(limits) <= tick.get_loc() <= max(limits)]
    found += [text for legend in legends for text in [*legend.get_texts(), legend.get_title()]]
    seen = [text for text in found if text.get_text() and text.get_visible()]
    return {text: Text.get_window_extent(text) for text in seen}  # of an annotation without its arrow


def assert_readable(*axes, smallest=9):
    """No text of these axes of one figure lies upon another, leaves the figure or is smaller than `smallest` points."""
    boxes = {text: box for ax in axes for text, box in texts_drawn(ax).items()}
    whole = axes[0].figure.bbox
    for (one, box), (other, its) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(its), (one, other)
    for text, box in boxes.items():
        assert 0 <= box.x0 < box.x1 <= whole.width, text
        assert 0 <= box.y0 < box.y1 <= whole.height, text
        assert text.get_fontsize() >= smallest, text
    return boxes


def bars_drawn(ax):
    """(colour, start, length, middle) of each bar on the lanes of a time axis, in the order in which they are drawn."""
    found = []
    for bars in ax.collections:
        if isinstance(bars, PolyCollection):
            boxes = [path.get_extents() for path in bars.get_paths()]
            colour = to_hex(bars.get_facecolor()[0])
            found += [(colour, round(b.x0, 4), round(b.width, 4), round((b.y0 + b.y1) / 2, 4)) for b in boxes]
    return found
