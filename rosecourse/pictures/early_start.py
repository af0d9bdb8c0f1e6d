"""Kernels in a row on a time axis: what each does from its launch to its end, and where they overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from ..checks import require
from ..measure.early_start_simulation import ASK, LAUNCH, RUN, TAIL, WAIT, WORK, Row, Span
from .sheet import LINE_HEIGHT, MARGIN, TEXT, WIDTH, Picture, Sheet, draw_shape, draw_text, plain, text_width
from .time_axis import LANE, Scale, draw_axis, draw_bar

OVER = 7  # pixels that a name may stick out on either side of its bar: most are wider than their names
UNIT_WIDTH, BETWEEN = 44, 4  # left of the axis, and between two lanes
MOST_KERNELS = 24  # that can be drawn
# Light enough for black text; neighbours differ in brightness, too.
FILLS = {LAUNCH: "#B8B8B8", ASK: "#7FCDB4", WAIT: "white", WORK: "#E69F00", TAIL: "#F7DDA8", RUN: "#E69F00"}
SAID = {
    LAUNCH: "being launched",
    ASK: "ask for weights",
    WAIT: "wait for the kernel before",
    WORK: "work",
    TAIL: "its last programs work",
    RUN: "from its start to its end, as recorded",
}


def draw_rows(rows: Mapping[str, Row], title: str) -> Picture:
    """For each row of kernels its bars, all rows on one scale. Kernels that overlap lie in lanes of their own.

    Raises `ConfigError` for nothing to draw, too many kernels, or different units.
    """
    require(len(rows) > 0, "there are no kernels to draw: give one row or more")
    most = max(len(row.names) for row in rows.values())
    require(most <= MOST_KERNELS, f"{most} kernels: at most {MOST_KERNELS} can be drawn")
    units = {row.unit for row in rows.values()}
    require(len(units) == 1, f"the rows are in {', '.join(sorted(units))}: give all in one unit")
    end = max(row.end for row in rows.values())
    require(end > 0, "nothing in these rows takes any time: give a time above 0")
    inner = WIDTH - 2 * MARGIN
    scale = Scale(MARGIN + UNIT_WIDTH, (inner - UNIT_WIDTH - 8) / end)
    sheet = Sheet(inner)
    sheet.heading(plain(title))
    drawn = {span.what for row in rows.values() for span in row.spans}
    sheet.legend([(FILLS[what], SAID[what]) for what in FILLS if what in drawn - {WAIT}])
    for name, row in rows.items():
        sheet.y += 6
        draw_text(sheet.root, (MARGIN, sheet.y + TEXT), headline(plain(name), row), weight="bold")
        sheet.y += LINE_HEIGHT + 6
        _draw_row(sheet, plain(name), row, scale)
    draw_axis(sheet, end, scale, units.pop())
    said = "; ".join(headline(plain(name), row) for name, row in rows.items())
    return sheet.picture(f"{plain(title)}. {said}", None)


def headline(name: str, row: Row) -> str:
    """What the row comes to, in words."""
    does = "runs" if any(span.what == RUN for span in row.spans) else "works"
    time = f"{name}: {row.end:.4g} {row.unit}"
    if not row.gaps:
        return f"{time}; between the first kernel and the last, one always {does}"
    return f"{time}; between kernels lie {row.in_gaps:.3g} {row.unit} in which none {does}"


def _draw_row(sheet: Sheet, name: str, row: Row, scale: Scale) -> None:
    group = draw_shape(sheet.root, "g", class_="row", data_row=name)
    free: list[float] = []  # from when on each lane is
    for kernel in range(len(row.names)):
        spans = [span for span in row.spans if span.kernel == kernel]
        lane = next((n for n, since in enumerate(free) if since <= spans[0].start), len(free))
        free[lane:] = [spans[-1].end, *free[lane + 1 :]]
        top = sheet.y + lane * (LANE + BETWEEN)
        for span in spans:
            texts = ["waits"] if span.what == WAIT else []
            data = {"class_": span.what, "data_kernel": kernel}
            draw_bar(group, (span.start, span.end), top, texts, scale, FILLS[span.what], span.what == WAIT, data)
        _draw_name(group, plain(row.names[kernel]), spans, top, scale)
    sheet.y += len(free) * (LANE + BETWEEN) + 8


def _draw_name(parent: Element, name: str, spans: Sequence[Span], top: float, scale: Scale) -> None:
    """A kernel's name on its work, where there is room for it."""
    work = next(span for span in spans if span.what in (WORK, RUN))
    left, right = scale.at(work.start), scale.at(work.end)
    if text_width(name, TEXT) <= right - left + 2 * OVER:
        draw_text(parent, ((left + right) / 2, top + LANE / 2 + 4), name, anchor="middle")
