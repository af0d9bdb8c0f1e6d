"""The tables of all lessons, in markdown, as the README, docs/figures.md and the start page show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..lessons import LESSONS, Lesson
from ..lessons.workloads import F
from ..measure.metrics import PERCENTILES, UNITS
from ..measure.stats import NO_DIFFERENCE
from ..measure.traffic import D
from ..pages.shared import page_of
from .noted import published_figures
from .results import RESULTS
from .runs import RecordedComparison, recorded_comparison


def lessons_table(notebooks: Path, folder: Path = RESULTS) -> str:
    """The README's table of lessons, in markdown: a row for each rung of the ladder.

    Its last cell has the workload and the recorded ratio of the lesson's `headline`; it is empty where nothing is
    before the lesson. notebooks: the folder with the notebooks, to which the rows link.
    """
    recordings = {rung.number: recorded_comparison(rung.number, folder=folder) for rung in LESSONS}
    lines = [["lesson", recorded_head(recordings.values())]]
    for rung in LESSONS:
        (notebook,) = notebooks.glob(page_of(rung.number))
        link = f"[{rung.number} {rung.title}]({notebooks.name}/{notebook.name})"
        lines.append([link, ratio_cell(rung, recordings[rung.number])])
    return markdown_table(lines)


def ratio_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    """The workload, the figure that a lesson is about, and how many times better it becomes; empty for the first."""
    if not rung.changes:
        return ""
    worth = "not recorded yet"
    if recording is not None:
        worth = recording.ratio(*rung.headline).shown(2)
    return f"{rung.workload.name}: {headline_name(rung)} {worth}"


def recorded_head(recordings: Iterable[RecordedComparison | None]) -> str:
    """The head of a column of recorded figures, with the GPUs on which they were recorded."""
    devices = dict.fromkeys(one.conditions.device for one in recordings if one is not None)
    return f"recorded ({' or '.join(devices)})" if devices else "recorded"


def articles_table(folder: Path = RESULTS) -> str:
    """The articles' figures beside the recorded ones, in markdown: a row for each lesson that has an article."""
    lines = [["lesson", "workload", "the article, on its author's GPU", "recorded here"]]
    for rung in LESSONS:
        if article := _article_cell(rung):
            recorded = recorded_cell(rung, recorded_comparison(rung.number, folder=folder))
            lines.append([f"{rung.number} {rung.title}", str(rung.workload), article, recorded])
    return markdown_table(lines)


def workloads_table() -> str:
    """The workloads of the lessons by their letters, in markdown, with F and mixed traffic, which 072 has as well."""
    works = {work.name: str(work) for work in (*(rung.workload for rung in LESSONS), F)}
    works |= {"D": str(D)}
    return markdown_table([["letter", "workload"], *([name, works[name]] for name in sorted(works))])


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """A table in markdown, the first line its head."""
    head, *rows = lines
    ruled = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n" for cells in ruled)


def _article_cell(rung: Lesson) -> str:
    """The figure that the article is about, before and after, and how many times better the latter is.

    With its number of requests where that differs from the recorded one.
    """
    metric, statistic = rung.headline
    rows = published_figures(rung.number)
    rows = rows[(rows.metric == metric) & (rows.statistic == statistic) & rows.source.str.startswith("article")]
    article = next(rows.itertuples(), None)
    if article is None:
        return ""
    requests = "" if article.workload == str(rung.workload) else f" ({article.workload.partition(' x')[0]})"
    unit = UNITS[metric].removesuffix("/token")
    times = article.after / article.before if unit == "tokens/s" else article.before / article.after
    return f"{headline_name(rung)} {article.before:.2f} to {article.after:.2f} {unit}: {times:.2f}x{requests}"


def headline_name(rung: Lesson) -> str:
    """The figure that a lesson is about, such as `TPOT` or `ITL p99`."""
    metric, statistic = rung.headline
    return metric.removeprefix("total ") + (f" {statistic}" if statistic in PERCENTILES else "")


def recorded_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    """A lesson's recorded headline: before and after, the ratio with its interval; it says so if nothing differs."""
    if not rung.changes:
        return ""
    if recording is None:
        return "not recorded yet"
    metric, statistic = rung.headline
    unit = UNITS[metric].removesuffix("/token")
    digits = ",.0f" if unit == "tokens/s" else ".2f"
    before, after = (format(side.typical(metric, statistic), digits) for side in recording.sides)
    better = recording.ratio(metric, statistic)
    return f"{before} to {after} {unit}: {better.shown(2)}{', no difference' * (better.verdict == NO_DIFFERENCE)}"


def named_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    """The same with the name of the figure before it; empty for the first."""
    figures = recorded_cell(rung, recording)
    return f"{headline_name(rung)} {figures}" if figures else ""
