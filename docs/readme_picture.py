"""Draw docs/whole_ladder.png, the picture of the README, from data/results, and put its caption into README.md.

python docs/readme_picture.py
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rosecourse.lessons.workloads import ARTICLES
from rosecourse.pictures.plots import draw_ladder
from rosecourse.records.runs import RecordedLadder, recorded_ladder

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "whole_ladder.png"
DRAWN = ("A", "C-one")
INCHES, DPI = 8.3, 200  # GitHub shows it 830 pixels wide: a point of text is 1.39 of them
BEGINS = "*Recorded in one sitting, each workload on one "  # of the caption


@cache
def ladders() -> dict[str, RecordedLadder]:
    """The ladder under each workload that is drawn. Raises `SystemExit` where one is not recorded."""
    found = {name: recorded_ladder(name) for name in DRAWN}
    if missing := [name for name, ladder in found.items() if ladder is None]:
        raise SystemExit(f"workload {missing[0]} is not recorded: run tools/record/runs.py")
    return {name: ladder for name, ladder in found.items() if ladder is not None}


def facts() -> str:
    """What is drawn, in short. The picture's file says it too, so that a test sees whether it is up to date."""
    return hashlib.sha256("".join(one.table().to_csv() for one in ladders().values()).encode()).hexdigest()


def caption() -> str:
    """The README's sentences about the picture, in Markdown."""
    said = []
    for name, ladder in ladders().items():
        first, last, times = ladder.rungs[0], ladder.rungs[-1], ladder.speedups[-1]
        rates = f"{first.throughput.value:,.0f} to {last.throughput.value:,.0f} tokens/s"
        interval = f"[{times.low:.0f}, {times.high:.0f}]"
        said.append(f"{name} ({ladder.conditions.work}): {rates}, **{times.value:.0f}x** {interval}.")
    one = ladders()["A"]
    return (
        f"{BEGINS}{one.conditions.device}, {one.document['date'][:10]}: GPT-2's shape (124M), float16, the median of "
        f"{one.conditions.rounds} runs. {' '.join(said)} In brackets: the "
        "[share of the floor](docs/figures.md#how-they-are-measured).*"
    )


def picture() -> Figure:
    """A bar for each lesson under each workload."""
    figure = Figure(figsize=(INCHES, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    for ax, (name, ladder) in zip(figure.subplots(1, len(DRAWN)), ladders().items(), strict=True):
        sizes = str(ARTICLES[name]).partition(", batch")[0]
        draw_ladder(ax, ladder, f"{name}: {sizes}", named=name == DRAWN[0])
    return figure


def main() -> None:
    picture().savefig(PICTURE, dpi=DPI, facecolor="white", metadata={"Software": None, "Recorded": facts()})
    readme = ROOT / "README.md"
    readme.write_text(re.sub(r"(?m)^\*Recorded.*$", lambda _: caption(), readme.read_text(), count=1))


if __name__ == "__main__":
    main()
