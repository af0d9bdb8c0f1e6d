"""The results of small matrix products, cut into the tiles that one program each computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..errors import ConfigError
from .colours import AFTER, INK
from .labels import SMALL

BAND, ROOM = 1.0, 0.62  # heights: of a result, and of the text above it


class Cut(NamedTuple):
    """A result of rows x columns in tiles of BM x BN, each computed by so many programs that share its inputs."""

    rows: int
    columns: int
    BM: int
    BN: int
    splits: int

    @property
    def tiles(self) -> int:
        return -(-self.rows // self.BM) * -(-self.columns // self.BN)

    @property
    def programs(self) -> int:
        return self.tiles * self.splits


def draw_tiles(ax: Axes, products: Mapping[str, Cut], processors: int, title: str) -> None:
    """Each result as a band, as long as it has columns, with a line around each tile; above it its programs.

    processors: that a GPU has; a product that keeps fewer of them busy says so. All results have the same number of
    rows. Figures of 9 x 4 inches with `layout="constrained"` suit it. Raises `ConfigError` for no product, or where
    the numbers of rows differ.
    """
    if len({one.rows for one in products.values()}) != 1:
        raise ConfigError("results of different numbers of rows, or none: give some of one batch")
    widest = max(one.columns for one in products.values())
    for number, (name, one) in enumerate(products.items()):
        top = number * (BAND + ROOM) + ROOM
        for left in range(0, one.columns, one.BN):
            for above in range(0, one.rows, one.BM):
                width, height = min(one.BN, one.columns - left), min(one.BM, one.rows - above)
                corner = (left, top + BAND * above / one.rows)
                tile = Rectangle(corner, width, BAND * height / one.rows, facecolor="#DCEEF9", edgecolor=AFTER["color"])
                ax.add_patch(tile)
        ax.text(0, top - 0.08, _told(name, one, processors), va="bottom", color=INK, fontsize=SMALL)
    ax.set(title=title, xlim=(-0.005 * widest, 1.005 * widest), ylim=(len(products) * (BAND + ROOM) + 0.1, 0))
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def _told(name: str, one: Cut, processors: int) -> str:
    tiles = f"{one.tiles} tiles of {one.BM} x {one.BN}"
    programs = f"{tiles} = {one.programs} programs"
    if one.splits > 1:
        programs = f"{tiles}, each in {one.splits} parts = {one.programs} programs"
    share = min(one.programs, processors) / processors
    return f"{name}, [{one.rows}, {one.columns}]: {programs}, on {share:.0%} of {processors} processors"
