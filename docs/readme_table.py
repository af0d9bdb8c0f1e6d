"""Put the tables into README.md and docs/figures.md, from the ladder and from data/.

python docs/readme_table.py
"""

import re
from collections.abc import Sequence
from pathlib import Path

from rosecourse.records.noted import noted
from rosecourse.records.runs import RecordedLadder, recorded_ladder
from rosecourse.records.tables import articles_table, lessons_table, markdown_table, workloads_table

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "figures.md"
BESIDE = {"A": "A", "C": "C-one"}  # the workloads under which others were measured, and this course's own


def engines_table() -> str:
    """Other engines between the first lesson and the last."""
    ladders = [ladder for name in BESIDE.values() if (ladder := recorded_ladder(name)) is not None]
    others = []
    for (engine, how), rows in noted("others").groupby(["engine", "configuration"], sort=False):
        rates = {row.workload: rate_of(row.lowest, row.highest) for row in rows.itertuples()}
        others.append([f"{engine}: {how}", *(rates.get(name, "") for name in BESIDE)])
    head = ["engine", *(f"{name}, tokens/s" for name in BESIDE)]
    return markdown_table([head, row_of(ladders, 0), *others, row_of(ladders, -1)])


def row_of(ladders: Sequence[RecordedLadder], place: int) -> list[str]:
    """The row of a rung of this course. place: on the ladder."""
    name = f"**this course, lesson {ladders[0].rungs[place].name}**"
    return [name, *(f"{ladder.rungs[place].throughput.value:,.0f}" for ladder in ladders)]


def rate_of(lowest: float, highest: float) -> str:
    return f"{lowest:,.0f}" if lowest == highest else f"{lowest:,.0f} to {highest:,.0f}"


def tables() -> dict[Path, list[str]]:
    """The tables of each file. In the file stands one whose first column has the same head."""
    return {
        README: [lessons_table(ROOT / "notebooks"), engines_table()],
        FIGURES: [workloads_table(), articles_table()],
    }


def main() -> None:
    for path, found in tables().items():
        text = path.read_text()
        for table in found:
            head = re.escape(table[: table.index("|", 1) + 1])
            text = re.sub(rf"(?m)^{head}.*\n(\|.*\n)*", lambda _, table=table: table, text)
        path.write_text(text)


if __name__ == "__main__":
    main()
