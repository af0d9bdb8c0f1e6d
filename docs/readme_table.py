"""Put the tables into README.md and docs/figures.md, from the ladder and from data/.

python docs/readme_table.py
"""

import re
from pathlib import Path

from rosecourse.records.noted import noted
from rosecourse.records.tables import articles_table, lessons_table, markdown_table, workloads_table

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "figures.md"


def engines_table() -> str:
    """Other engines beside this course's, tokens/s of whole runs: `data/peers.csv`."""
    rows = noted("peers")
    ours = rows["engine"].str.startswith("rosecourse")
    rows["engine"] = rows["engine"].where(ours, rows["engine"] + " " + rows["version"])
    wide = rows.pivot(index="engine", columns="workload", values="tokens/s").loc[rows["engine"].unique()]
    wide = wide[rows["workload"].unique()].sort_values(rows["workload"][0])
    return markdown_table(
        [["tokens/s", *wide.columns], *([name, *(f"{n:,}" for n in row)] for name, *row in wide.itertuples())]
    )


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
