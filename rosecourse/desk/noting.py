"""What the learner has done, in `my/progress.jsonl`: a line of JSON for each thing done, added at the end.

It is stored only by a process that works in the learner's folder, `my/`: a notebook of the learner's copy, or a command
that is run there. Of each thing done the first date counts, and of the runs the latest: the best of several would be
a lucky one. A line is added in one write, as two notebooks may write at the same time.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import date
from typing import Any

from .notebooks import desk_here

FILE = "progress.jsonl"
Done = dict[str, Any]  # of a lesson: the dates `read`, `built` and `found`, and `run`, which has `said` and `date`


def note(number: str, what: str, said: str = "") -> None:
    """Store what was done, if this is the learner's process. What cannot be stored costs a line, and no lesson.

    what: a key of `Done`. said: how a run has ended; it counts once the lesson's part is built.
    """
    if (folder := desk_here()) is None:
        return
    line = json.dumps({"lesson": number, "what": what, "date": date.today().isoformat(), "said": said})
    try:
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        print(f"Your progress cannot be stored in {folder.name}/{FILE}: {error}", file=sys.stderr)


def my_progress() -> dict[str, Done]:
    """What is stored, by lesson, if this process works in the learner's folder; nothing elsewhere.

    A line that is damaged is left out.
    """
    lessons: dict[str, Done] = {}
    folder = desk_here()
    if folder is None or not (folder / FILE).exists():
        return lessons
    for line in (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError):
            one = json.loads(line)
            done = lessons.setdefault(str(one["lesson"]), {})
            if one["what"] != "run":
                done.setdefault(one["what"], one["date"])
            elif "built" in done:
                done["run"] = {"said": one["said"], "date": one["date"]}
    return lessons
