"""Put the tables into README.md and docs/figures.md, from the ladder and from data/.

python docs/readme_table.py
"""

import re
from collections.abc import Sequence
from pathlib import Path

from rosecourse.lab.course import COURSES
from rosecourse.lab.course.form import Course
from rosecourse.records.noted import noted
from rosecourse.records.runs import RecordedLadder, recorded_ladder
from rosecourse.records.tables import articles_table, lessons_table, markdown_table, workloads_table

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "figures.md"
NO_RACE = {"061": "none"}  # on a CPU its change is below the threshold, as its notebook says
BESIDE = {"A": "A", "C": "C-one"}  # the workloads under which others were measured, and this course's own
NAMED_BY = ["engine", "version", "configuration", "command"]
OPTIONS = "[its options](docs/figures.md#other-engines)"  # without them a command measures something else
RECORDS = "`tools/record/runs.py`"  # behind this course's own rows


def race_on_a_cpu(course: Course) -> str:
    """What a lesson's race compares without a GPU."""
    timed = f"{course.track.counted}, counted" if course.track.untimed else "time"
    return NO_RACE.get(course.number, timed)


def engines_table() -> str:
    """Other engines between the first lesson and the last."""
    ladders = [ladder for name in BESIDE.values() if (ladder := recorded_ladder(name)) is not None]
    others = []
    for (engine, version, configuration, command), rows in noted("others").groupby(NAMED_BY, sort=False):
        rates = {row.workload: rate_of(row.lowest, row.highest) for row in rows.itertuples()}
        others.append([f"{engine} ({version}): {configuration}", *(rates.get(name, "") for name in BESIDE), command])
    head = ["engine", *(f"{name}, tokens/s" for name in BESIDE), f"command that measures it ({OPTIONS})"]
    return markdown_table([head, row_of(ladders, 0), *others, row_of(ladders, -1)])


def row_of(ladders: Sequence[RecordedLadder], place: int) -> list[str]:
    """The row of a rung of this course. place: on the ladder."""
    name = f"**this course, lesson {ladders[0].rungs[place].name}**"
    return [name, *(f"{ladder.rungs[place].throughput.value:,.0f}" for ladder in ladders), RECORDS]


def rate_of(lowest: float, highest: float) -> str:
    return f"{lowest:,.0f}" if lowest == highest else f"{lowest:,.0f} to {highest:,.0f}"


def tables() -> dict[Path, list[str]]:
    """The tables of each file. In the file stands one whose first column has the same head."""
    races = {number: race_on_a_cpu(course) for number, course in COURSES.items()}
    return {
        README: [lessons_table(ROOT / "notebooks", races), workloads_table(), engines_table()],
        FIGURES: [articles_table()],
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
