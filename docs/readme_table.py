"""Put the table of lessons into README.md, from the ladder, data/published.csv and data/results.

python docs/readme_table.py
"""

import re
from pathlib import Path

from rosecourse.records.tables import lessons_table

ROOT = Path(__file__).parents[1]


def main() -> None:
    readme = ROOT / "README.md"
    table = lessons_table(ROOT / "notebooks")
    readme.write_text(re.sub(r"(?m)^\| lesson \|.*\n(\|.*\n)+", lambda _: table, readme.read_text()))


if __name__ == "__main__":
    main()
