"""Published and recorded figures side by side: of one lesson, and of all lessons as the README and docs show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from ..lessons import LESSONS, Lesson
from ..lessons import lesson as lesson_of
from ..lessons.workloads import ArticleWorkload, F
from ..measure.metrics import PERCENTILES, UNITS
from ..measure.samples import figure_name
from ..measure.traffic import D
from .comparisons import RecordedComparison, recorded_comparison
from .noted import published_figures
from .results import RESULTS

COLUMNS = ["article", "original engine on this GPU", "here, before", "here, after", "times better, here"]
ROWS = [("total throughput", "mean"), ("TPOT", "p50"), ("ITL", "p99")]  # and TTFT, where the article has it
NOT_RECORDED = "not recorded yet"
NOTES = {"061": "(its kernel never ran in these runs)"}  # the positions differ, as its notebook counts
ARTICLE, ORIGINAL = "article", "original code"  # how the sources of published figures begin


def published_and_recorded(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> pd.DataFrame:
    """A lesson's published figures and its recorded ones, one metric a row; a cell is empty where there is none.

    Compare how many times better the figures become, not the figures: machines differ, and so do the engines' own
    costs. `attrs["caption"]` says what was measured and where the figures come from: a notebook prints it.
    """
    rung = lesson_of(lesson)
    published = published_figures(rung.number)
    recording = recorded_comparison(rung.number, gpu=gpu, folder=folder)
    wanted = [(metric, rung.headline[1] if metric == rung.headline[0] else stat) for metric, stat in ROWS]
    wanted += [("TTFT", "p50")] if "TTFT" in set(published.metric) else []
    rows = {}
    if recording is not None or len(published):
        for metric, statistic in wanted:
            mine = published[(published.metric == metric) & _same_steps(published, rung)]
            cells = [_published_cell(mine[mine.source.str.startswith(who)], statistic) for who in (ARTICLE, ORIGINAL)]
            name = f"{figure_name(metric, statistic)} ({UNITS[metric]})"
            rows[name] = cells + _recorded_cells(recording, metric, statistic)
    table = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    table.attrs["caption"] = _caption(rung, published, recording)
    return table


def _same_steps(published: pd.DataFrame, rung: Lesson) -> pd.Series:
    """Which rows are of the lesson's workload; how many requests go through the batch may differ."""
    return published.workload.str.endswith(str(rung.workload).partition("requests")[2])


def _published_cell(figures: pd.DataFrame, statistic: str) -> str:
    """The figures before and after: of this statistic, or, where it was not published, of all that were."""
    chosen = figures[figures.statistic == statistic] if statistic in set(figures.statistic) else figures
    return "; ".join(
        _change(row.statistic.removesuffix(f" {statistic}") if len(chosen) > 1 else "", row)
        for row in chosen.itertuples()
    )


def _change(name: str, row: Any) -> str:
    after = shown_figure(row.metric, row.after)
    prefix = f"{name}: " if name else ""
    if pd.isna(row.before):
        return f"{prefix}after {after}"
    return f"{prefix}{shown_figure(row.metric, row.before)} → {after} ({_times_better(row):.3f}x)"


def _times_better(row: Any) -> float:
    """Of a published row, whose metric is better where it is larger, or smaller."""
    better = row.after / row.before if UNITS[row.metric] == "tokens/s" else row.before / row.after
    return float(better)


def _recorded_cells(recording: RecordedComparison | None, metric: str, statistic: str) -> list[str]:
    """Before, after and how many times better."""
    if recording is None:
        return ["", "", ""]
    before, after = (
        shown_figure(metric, side.typical(metric, statistic)) if side.runs else ""
        for side in (recording.before, recording.after)
    )
    return [before, after, str(recording.ratio(metric, statistic)) if before else ""]


def shown_figure(metric: str, value: float) -> str:
    """A figure with as many digits as mean something: tokens a second whole, times to a hundredth."""
    return f"{value:,.0f}" if UNITS[metric] == "tokens/s" else f"{value:.2f}"


def _caption(rung: Lesson, published: pd.DataFrame, recording: RecordedComparison | None) -> str:
    """What was measured, and where: a sentence for each source."""
    mine = published[_same_steps(published, rung)]
    sentences = []
    for row in mine.drop_duplicates(["source", "workload"]).itertuples():
        sentences.append(f"{row.source[0].upper()}{row.source[1:]}: {row.workload}, on {_gpu_in_words(row.gpu)}.")
    if recording is not None:
        where = f"{recording.conditions.device}, {recording.source}, {recording.document['date'][:10]}"
        sentences.append(f"Here: {_workload_of(recording)}, {recording.conditions.rounds} rounds, on {where}.")
    return " ".join(sentences)


def _gpu_in_words(gpu: str) -> str:
    return "the author's GPU (not named)" if gpu.startswith("the author's") else gpu


def _workload_of(recording: RecordedComparison) -> str:
    """The workload in words, as it was recorded."""
    settings = recording.document["settings"]
    known = [field.name for field in fields(ArticleWorkload) if field.name in settings]
    sizes = {name: settings[name] for name in known if name != "name"}
    return str(ArticleWorkload(recording.document["workload"], **sizes))


# -- the tables of all lessons -------------------------------------------------------------------------------------


def lessons_table(notebooks: Path, races: Mapping[str, str], gpu: str | None = None, folder: Path = RESULTS) -> str:
    """The README's table of lessons, in markdown: a row for each rung of the ladder.

    A lesson's `headline` is the figure that it is about; its cell is empty where nothing is before the lesson.
    notebooks: the folder with the notebooks, `<number>_*.ipynb`, to which the rows of those lessons link that have one.
    races: what a race on a CPU compares, by the number of the lesson. gpu and folder: as for `recorded_comparison`.
    """
    recordings = {rung.number: recorded_comparison(rung.number, gpu=gpu, folder=folder) for rung in LESSONS}
    lines = [["lesson", "what changes", "workload", recorded_head(recordings.values()), "race on a CPU"]]
    for rung in LESSONS:
        notebook = next(notebooks.glob(f"{rung.number}_*.ipynb"), None)
        number = rung.number if notebook is None else f"[{rung.number}]({notebooks.name}/{notebook.name})"
        figures = named_cell(rung, recordings[rung.number])
        lines.append([f"{number} {rung.title}", rung.about, rung.workload.name, figures, races.get(rung.number, "")])
    return markdown_table(lines)


def recorded_head(recordings: Iterable[RecordedComparison | None]) -> str:
    """The head of a column of recorded figures, with the GPUs on which they were recorded."""
    devices = dict.fromkeys(one.conditions.device for one in recordings if one is not None)
    return f"recorded ({' or '.join(devices)})" if devices else "recorded"


def articles_table(gpu: str | None = None, folder: Path = RESULTS) -> str:
    """The articles' figures beside the recorded ones, in markdown: a row for each lesson that has an article."""
    lines = [["lesson", "workload", "the article, on its author's GPU", "recorded here"]]
    for rung in LESSONS:
        if article := _article_cell(rung):
            recorded = recorded_cell(rung, recorded_comparison(rung.number, gpu=gpu, folder=folder))
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
    rows = rows[(rows.metric == metric) & (rows.statistic == statistic)]
    rows = rows[rows.source.str.startswith(ARTICLE)]
    if rows.empty:
        return ""
    (article,) = rows.itertuples()
    requests = "" if article.workload == str(rung.workload) else f" ({article.workload.partition(' x')[0]})"
    times = _times_better(article)
    return f"{headline_name(rung)} {article.before:.2f} to {article.after:.2f} {_unit(metric)}: {times:.2f}x{requests}"


def headline_name(rung: Lesson) -> str:
    """The figure that a lesson is about, such as `TPOT` or `ITL p99`."""
    metric, statistic = rung.headline
    return metric.removeprefix("total ") + (f" {statistic}" if statistic in PERCENTILES else "")


def recorded_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    """What a lesson is worth as recorded: its headline's figure before and after, the ratio with its interval, a note.

    Only few lessons have a note: it says what their figures do not show.
    """
    if not rung.changes:
        return ""
    if recording is None:
        return NOT_RECORDED
    metric, statistic = rung.headline
    before, after = (shown_figure(metric, side.typical(metric, statistic)) for side in recording.sides)
    better = recording.ratio(metric, statistic)
    return f"{before} to {after} {_unit(metric)}: {better.shown(2)} {NOTES.get(rung.number, '')}".rstrip()


def named_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    """The same with the name of the figure before it; empty for the first."""
    figures = recorded_cell(rung, recording)
    return f"{headline_name(rung)} {figures}" if figures else ""


def _unit(metric: str) -> str:
    return UNITS[metric].removesuffix("/token")
