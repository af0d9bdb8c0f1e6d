"""Published and recorded figures side by side: of one lesson in full, and of all lessons as the README shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..lessons import LESSONS, Lesson
from ..lessons.workloads import ArticleWorkload
from ..measure.compare import HEADLINES
from ..measure.metrics import PERCENTILES, UNITS
from .comparisons import RecordedComparison, recorded_comparison
from .published import published_figures
from .results import RESULTS

COLUMNS = ["workload", "metric", "statistic", "unit", "before", "after", "times better", "gpu", "source"]
SIZES = ("benchmark", "num_requests", "max_new_tokens", "max_batch_size")  # in a recorded file's settings


def published_and_recorded(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> pd.DataFrame:
    """A lesson's published figures and its recorded ones, metric by metric; without a recording only the former.

    Columns: workload, metric, statistic, unit, before, after, times better, gpu, source. Compare what is
    `times better`, not the times: machines differ, and for 059 and 060 the schedules do too. By their figures (ITL x
    throughput = 256) the articles' engine kept all requests running, 16 of them in a step; this one finishes 16 and
    then admits the next.
    """
    rows = published_figures(lesson).drop(columns=["lesson", "stated"])
    recording = recorded_comparison(lesson, gpu, folder)
    if recording is not None:
        both = [(m, s) for m, s in zip(rows.metric, rows.statistic, strict=True) if s in ("mean", *PERCENTILES)]
        wanted = list(dict.fromkeys(both)) or HEADLINES
        ours = pd.DataFrame([_recorded_row(recording, metric, statistic) for metric, statistic in wanted])
        rows = pd.concat([rows, ours], ignore_index=True) if len(rows) else ours
    is_rate = rows.unit == "tokens/s"
    rows["times better"] = (rows.after / rows.before).where(is_rate, rows.before / rows.after)
    order = list(UNITS)
    return rows[COLUMNS].sort_values("metric", key=lambda m: m.map(order.index), kind="stable", ignore_index=True)


def _recorded_row(recording: RecordedComparison, metric: str, statistic: str) -> dict[str, Any]:
    settings = recording.document["settings"]
    return {
        "workload": _in_words(ArticleWorkload(**{name: settings[name] for name in SIZES})),
        "metric": metric,
        "statistic": statistic,
        "unit": UNITS[metric],
        "before": recording.before.figure(metric, statistic),
        "after": recording.after.figure(metric, statistic),
        "gpu": recording.conditions.device,
        "source": f"recorded, {recording.source}, {recording.document['date'][:10]}",
    }


def _in_words(workload: ArticleWorkload) -> str:
    sizes = f"{workload.num_requests} requests x {workload.max_new_tokens} tokens, batch {workload.max_batch_size}"
    return f"{sizes} ({workload.benchmark.removeprefix('benchmark_')})"


# -- the README's table -------------------------------------------------------------------------------------------


def lessons_table(notebooks: Path, gpu: str | None = None, folder: Path = RESULTS) -> str:
    """The README's table of lessons, in markdown: a row for each rung of the ladder.

    A lesson's `headline` is the figure that its article is about. Its cells are empty where there is no article, no
    recording, or nothing before the lesson. notebooks: the folder with a notebook for each lesson, `<number>_*.ipynb`,
    to which the rows link; gpu and folder: as for `recorded_comparison`.
    """
    recordings = {rung.number: recorded_comparison(rung.number, gpu, folder) for rung in LESSONS}
    devices = dict.fromkeys(one.conditions.device for one in recordings.values() if one is not None)
    header = ["lesson", "what changes", "workload", "the article's figure, before and after"]
    header.append(f"recorded on one {' or '.join(devices)}" if devices else "recorded")
    lines = [header, ["---"] * len(header)]
    for rung in LESSONS:
        (notebook,) = notebooks.glob(f"{rung.number}_*.ipynb")
        link = f"[{rung.number}]({notebooks.name}/{notebook.name}) {rung.title}"
        lines.append([link, rung.about, _in_words(rung.workload), _article_cell(rung)])
        lines[-1].append(_recorded_cell(rung, recordings[rung.number]))
    return "".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|\n" for cells in lines)


def _article_cell(rung: Lesson) -> str:
    metric, statistic = rung.headline
    rows = published_figures(rung.number).query("metric == @metric and statistic == @statistic")
    rows = rows[rows.source.str.startswith("article")]
    if rows.empty:
        return ""
    (article,) = rows.itertuples()
    name = metric.removeprefix("total ") + (f" {statistic}" if statistic in PERCENTILES else "")
    return f"{name} {article.before:.2f} to {article.after:.2f} {_unit(metric)}"


def _recorded_cell(rung: Lesson, recording: RecordedComparison | None) -> str:
    if recording is None or not recording.before.runs:
        return ""
    metric, statistic = rung.headline
    digits = ",.0f" if UNITS[metric] == "tokens/s" else ".2f"
    before, after = (side.figure(metric, statistic) for side in recording.sides)
    better = recording.ratio(metric, statistic)
    interval = f"{better.value:.2f}x [{better.low:.2f}, {better.high:.2f}]"
    return f"{before:{digits}} to {after:{digits}} {_unit(metric)}: {interval}"


def _unit(metric: str) -> str:
    return UNITS[metric].removesuffix("/token")
