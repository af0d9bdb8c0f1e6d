"""In which order a decode step calls its stages, and what each layer does in them, drawn from the calls of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..checks import require
from .colours import COLOURS
from .grid import Bar, Cell, Grid, draw_grids, label
from .sheet import USED, Picture

CALL_COLOURS = {"write": COLOURS["kv_append"], "attend": COLOURS["forward"]}  # others have none


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a decode step: a stage itself, or what it does for a layer.

    work: such as "write"; "" is the stage as a whole. layer: None is for all layers.
    """

    stage: str
    work: str = ""
    layer: int | None = None


def order_of_calls(title: str, calls: Sequence[Call]) -> Picture:
    """The stages of one step from the first to the last, with what each layer does in them in its order.

    Of more than three layers, the first two and the last are drawn. Raises `ConfigError` for no calls.
    """
    require(len(calls) > 0, "no calls are given: give those of a decode step")
    rows, said = [], []
    for number, (stage, inside) in enumerate(groupby(calls, key=lambda call: call.stage), start=1):
        cells = _folded(list(inside))
        rows.append([label(f"{number}. {stage}"), *cells])
        said.append(f"{stage}: {', '.join(' '.join(cell.lines) for cell in cells) or 'no layers'}")
    return draw_grids(title, [Grid(rows)], [], f"{title}. {'; '.join(said)}")


def _folded(calls: Sequence[Call]) -> list[Cell]:
    """What is drawn of a stage's calls; "…" stands for the layers in the middle."""
    last = max((call.layer for call in calls if call.layer is not None), default=0)
    cells = [Cell("…") if call.layer and 1 < call.layer < last else _cell(call) for call in calls if call.work]
    return [cell for cell, _ in groupby(cells)]


def _cell(call: Call) -> Cell:
    layer = "" if call.layer is None else f"\nlayer {call.layer}"
    bar = Bar(1, 1, [CALL_COLOURS[call.work]]) if call.work in CALL_COLOURS else None
    return Cell(f"{call.work}{layer}", USED, bar=bar)
