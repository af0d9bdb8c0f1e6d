"""Draw docs/whole_ladder.png, the picture of the README, from data/results, and put its caption into README.md.

python docs/readme_picture.py
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rosecourse.lessons.workloads import ARTICLES
from rosecourse.measure.replayed_step import replayed_step
from rosecourse.measure.stats import Ratio
from rosecourse.measure.timeline import Timeline
from rosecourse.pictures.whole_ladder import draw_ladder, draw_legends, draw_step, kernels_drawn
from rosecourse.records.whole_ladder import RecordedRung, WholeLadder, timeline_of, whole_ladder

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "whole_ladder.png"
INCHES, DPI = 8.3, 200  # GitHub shows it 830 pixels wide: a point of text is 1.39 of them
BEGINS = "*Recorded, each run on one GPU "  # of the caption
NARROW = 2  # the README takes a factor of two seriously, and a smaller one not
LAYERS = 12  # of GPT-2, 124M


@cache
def ladders() -> dict[str, WholeLadder]:
    """The ladder under each workload that is drawn. Raises `SystemExit` where one is not recorded."""
    found = {name: whole_ladder(name) for name in ("A", "C")}
    if missing := [name for name, ladder in found.items() if ladder is None]:
        raise SystemExit(f"workload {missing[0]} is not recorded: run `rosecourse record`")
    return {name: ladder for name, ladder in found.items() if ladder is not None}


def ends() -> dict[RecordedRung, Timeline]:
    """The first and the last rung under workload A, each with a decode step inside a block."""
    first, *_, last = ladders()["A"].rungs
    found = {rung: timeline_of(rung.number, "A") for rung in (first, last)}
    return {rung: timeline for rung, timeline in found.items() if timeline is not None}


def facts() -> str:
    """What is drawn, in short. The picture's file says it too, so that a test sees whether it is up to date."""
    text = json.dumps([[asdict(one) for one in ladders().values()], [one.document() for one in ends().values()]])
    return hashlib.sha256(text.encode()).hexdigest()


def sizes_of(name: str) -> str:
    return str(ARTICLES[name]).partition(" (")[0]


def times(chained: Ratio) -> str:
    """How many times as many tokens; in bold only where the interval is narrow enough to tell."""
    interval = f"[{chained.low:.0f}, {chained.high:.0f}]"
    if chained.high > NARROW * chained.low:
        return f"roughly {chained.value:.0f} times as many {interval} (its runs vary too much for a closer figure)"
    return f"**{chained.value:.0f} times** as many {interval}"


def caption() -> str:
    """The README's sentences about the picture, in Markdown."""
    a, *_ = ladders().values()
    said, quotients = [], []
    for name, ladder in ladders().items():
        first, *_, last = ladder.rungs
        rates = f"{first.throughput:,.0f} and {last.throughput:,.0f}"
        said.append(f"{name}, {sizes_of(name)}: {rates}, {times(ladder.multiplied)}")
        quotients.append(f"{last.throughput / first.throughput:.0f} ({name})")
    apart = " and ".join(f"{100 * (ladder.apart - 1):.0f} % ({name})" for name, ladder in ladders().items())
    limits = " and ".join(f"{ladder.memory_limit:,.0f} ({name})" for name, ladder in ladders().items())
    return (
        f"{BEGINS}({a.device}), with a model of GPT-2's shape (124M) in float16. Tokens a second of whole runs in the "
        f"first lesson and in the last, and their chained ratio with its 95 % interval: {'; '.join(said)}. The scale "
        f"below the bars is the share of what the memory allows, {limits} tokens a second: each step would read the "
        "weights and the cache once, and nothing else would take time. The ladder was recorded in parts, "
        f"{days(a.dates)}. A lesson with two bars was recorded twice: beside the lesson before it, and (light) beside "
        f"the one after it. The two differ by up to {apart}, so only figures of one recording can be compared. A "
        "chained ratio is the product of the ratios of the parts, each from its first lesson to its last in one "
        f"recording. The two figures beside it are of two recordings: their quotients, {' and '.join(quotients)}, are "
        "other numbers.*"
    )


def days(dates: Sequence[str]) -> str:
    return f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"


def step_title(rung: RecordedRung, timeline: Timeline) -> str:
    """What is drawn: a window of so many layers, with so many of the step's kernels."""
    shown = kernels_drawn(timeline)
    seen = sum(kernel.kind == "attention" for kernel in shown)
    whole = len((replayed_step(timeline, LAYERS) if seen < LAYERS else timeline).kernels)
    busy = f"GPU busy for {100 * timeline.busy_share:.0f} %"
    length = f"{timeline.step_us / 1e3:.2g} ms"
    of_it = f"a step of A, {length}" if seen == LAYERS else f"a window of {length} in steps of A"
    counts = f"{seen} of {LAYERS} layers, {len(shown):,} of {whole:,} kernels"
    return f"Lesson {rung.number}: {of_it}, {counts}; {busy}"


def picture() -> Figure:
    """The ladder under both workloads above, a decode step of its first and last rung below."""
    figure = Figure(figsize=(INCHES, 7.4), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subfigures(2, 1, height_ratios=[4.3, 3.1])
    for number, (ax, (name, ladder)) in enumerate(zip(above.subplots(1, 2), ladders().items(), strict=True)):
        title = f"{name}: {sizes_of(name)}\ntokens per second"
        draw_ladder(ax, ladder, title, named=number == 0)
    *lanes, legends = below.subplots(3, 1, height_ratios=[1, 1, 0.5])
    for ax, (rung, timeline) in zip(lanes, ends().items(), strict=True):
        draw_step(ax, timeline, step_title(rung, timeline))
    draw_legends(legends, list(ends().values()))
    return figure


def main() -> None:
    picture().savefig(PICTURE, dpi=DPI, facecolor="white", metadata={"Software": None, "Recorded": facts()})
    readme = ROOT / "README.md"
    pattern = rf"(?m)^{re.escape(BEGINS)}.*$"
    readme.write_text(re.sub(pattern, lambda _: caption(), readme.read_text()))


if __name__ == "__main__":
    main()
