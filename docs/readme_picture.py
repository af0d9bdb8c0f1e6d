"""Draw docs/whole_ladder.png, the picture of the README, from data/results, and put its caption into README.md.

python docs/readme_picture.py
"""

import hashlib
import json
import re
from functools import cache
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rosecourse.lessons.workloads import ARTICLES
from rosecourse.pictures.whole_ladder import draw_ladder, draw_step, kinds_legend
from rosecourse.records.whole_ladder import RecordedRung, timeline_of, whole_ladder

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "whole_ladder.png"
INCHES, DPI = 8.3, 200  # GitHub shows it 830 pixels wide: a point of text is 1.39 of them
BEGINS = "*Recorded on one "  # of the caption


@cache
def ladders() -> dict[str, list[RecordedRung]]:
    """The rungs under each workload that is drawn."""
    return {name: whole_ladder(name) for name in ("A", "C")}


def ends(ladder: list[RecordedRung]) -> dict[RecordedRung, dict]:
    """The first and the last rung under workload A, each with its timeline's document."""
    return {rung: timeline_of(rung.number, "A").document() for rung in (ladder[0], ladder[-1])}


def facts() -> str:
    """What is drawn, in short. The picture's file says it too, so that a test sees whether it is up to date."""
    found = ladders()
    text = json.dumps([[[vars(rung) for rung in rungs] for rungs in found.values()], [*ends(found["A"]).values()]])
    return hashlib.sha256(text.encode()).hexdigest()


def caption() -> str:
    """The README's sentence about the picture, in Markdown."""
    (first, *_, last), (first_c, *_, last_c) = ladders().values()
    sizes = {name: str(ARTICLES[name]).partition(" (")[0] for name in "AC"}
    return (
        f"{BEGINS}{last.device}, a model of GPT-2's shape (124M) in float16: with {sizes['A']}, lesson {last.number} "
        f"makes {last.throughput:,.0f} tokens a second where lesson {first.number} makes {first.throughput:,.0f}, "
        f"**{last.throughput / first.throughput:.0f} times** as many; with {sizes['C']}, "
        f"{last_c.throughput:,.0f} where it makes {first_c.throughput:,.0f}. In brackets is the share of the floor, "
        "the least time in which the device could read the weights and the cache once in each step.*"
    )


def picture() -> Figure:
    """The ladder under both workloads above, a decode step of its first and last rung below."""
    found = ladders()
    figure = Figure(figsize=(INCHES, 6.9), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subfigures(2, 1, height_ratios=[4.1, 3.0])
    axes = above.subplots(1, 2)
    for number, (ax, (name, rungs)) in enumerate(zip(axes, found.items(), strict=True)):
        sizes = str(ARTICLES[name]).partition(" (")[0]
        draw_ladder(ax, rungs, f"{sizes}:\ntokens per second (share of the floor)", named=number == 0)
    lanes = below.subplots(2, 1)
    timelines = {rung: timeline_of(rung.number, "A") for rung in (found["A"][0], found["A"][-1])}
    for ax, (rung, timeline) in zip(lanes, timelines.items(), strict=True):
        busy = (
            f"the GPU works for {timeline.busy_us / 1e3:.2g} ms of it, in {len(timeline.kernels):,} kernels and copies"
        )
        draw_step(ax, timeline, f"Lesson {rung.number}, a decode step: {rung.tpot_ms:.2g} ms; {busy}")
    kinds_legend(lanes[-1], list(timelines.values()))
    return figure


def main() -> None:
    picture().savefig(PICTURE, dpi=DPI, facecolor="white", metadata={"Software": None, "Recorded": facts()})
    readme = ROOT / "README.md"
    pattern = rf"(?m)^{re.escape(BEGINS)}.*$"
    readme.write_text(re.sub(pattern, lambda _: caption(), readme.read_text()))


if __name__ == "__main__":
    main()
