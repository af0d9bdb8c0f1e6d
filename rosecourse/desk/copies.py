"""The learner's copy of the notebooks: made once, renewed while it is unchanged, and never overwritten otherwise.

A copy counts as changed when something is written in it, a cell or a word. One that was only run has other outputs and
the same sources: it is renewed when the lesson is, because its outputs come back with the next run.

`.copies.json` in the learner's folder says what each copy was made from. Where it is missing or damaged, a copy that
differs from the lesson may be the learner's work, and is left alone.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from enum import Enum, auto
from itertools import count
from pathlib import Path
from secrets import token_hex

from ..checks import shown
from ..errors import LessonError
from ..records.whole_file import write_whole
from .notebooks import Digests, notebooks_in
from .places import DESK, NOTEBOOKS

MANIFEST = ".copies.json"
EXAMPLE = "`make reset LESSON=038`"
OPEN = "if it is open in Jupyter, its tab still shows the old one: close that without saving, and open it again"


class State(Enum):
    """How a copy stands to the lesson."""

    MISSING = auto()
    SAME = auto()  # or only run
    OTHER_OUTPUTS = auto()  # in the lesson, and the copy has not even been run
    OUTDATED = auto()  # and nothing is written in it
    YOURS = auto()
    YOURS_AND_OLDER = auto()
    UNKNOWN = auto()  # it differs, and nobody knows what it was made from


COPIED = (State.MISSING, State.OTHER_OUTPUTS, State.OUTDATED)
TOLD = {
    State.MISSING: "new",
    State.OUTDATED: "renewed, as nothing was written there",
    State.YOURS_AND_OLDER: "left alone, as you have written there, though the course has something newer",
    State.UNKNOWN: "left alone, as it is not what the course has and may be yours",
}


class Copies:
    """The copies in `my/` of the notebooks in `notebooks/`. root: the folder of both."""

    def __init__(self, root: Path) -> None:
        self.originals, self.folder = root / NOTEBOOKS, root / DESK

    def renew(self) -> list[str]:
        """Make the copies that are missing and renew those that are unchanged; returns what there is to tell, as lines.

        Raises `OSError` where a file cannot be read or written.
        """
        first = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        manifest, said = self._read_manifest()
        names: dict[State, list[str]] = {state: [] for state in State}
        for original in notebooks_in(self.originals):
            state = self._state(original, manifest.get(original.name))
            if state in COPIED:
                self._copy(original, manifest)
            elif state is State.SAME:
                manifest[original.name] = Digests.of(original)
            names[state].append(original.name)
        self._write_manifest(manifest)
        if first:
            return [f"{DESK}/ is your copy of the notebooks: work there, and git leaves it alone"]
        return said + [_line(state, names[state]) for state in TOLD if names[state]]

    def reset(self, number: str) -> str:
        """Bring one lesson's notebook back as the course has it, and keep the old one beside it; returns what was done.

        number: 38 is 038.
        Raises `LessonError` for a number that no notebook has, and `OSError` where a file cannot be written.
        """
        known = {path.name[:3]: path for path in notebooks_in(self.originals)}
        three = number.zfill(3) if number else ""
        if three not in known:
            raise LessonError(f"there is no lesson {shown(number)}: give one of {', '.join(known)}, as in {EXAMPLE}")
        original, copy = known[three], self.folder / known[three].name
        self.folder.mkdir(exist_ok=True)
        manifest, _ = self._read_manifest()
        old = ""
        if copy.exists():
            if Digests.of(copy) == Digests.of(original):
                return f"{DESK}/{copy.name} is as the course has it: there is nothing to bring back"
            kept = _free_name(copy)
            copy.rename(kept)
            old = f"; the old one is {DESK}/{kept.name}, and your progress stays ticked; {OPEN}"
        self._copy(original, manifest)
        self._write_manifest(manifest)
        return f"{DESK}/{copy.name} is as the course has it{old}"

    def _state(self, original: Path, made: Digests | None) -> State:
        """How a copy stands to the lesson. made: what it was copied from; None where that is not known."""
        copy = self.folder / original.name
        if not copy.exists():
            return State.MISSING
        now, course = Digests.of(copy), Digests.of(original)
        if now.sources == course.sources:  # what differs is outputs: those of a run here say more than the course's
            return State.OTHER_OUTPUTS if now == made and now != course else State.SAME
        if made is None:
            return State.UNKNOWN
        if now.sources == made.sources:
            return State.OUTDATED
        return State.YOURS if made.sources == course.sources else State.YOURS_AND_OLDER

    def _copy(self, original: Path, manifest: dict[str, Digests]) -> None:
        """Copy a notebook whole or not at all, and note what it was."""
        temporary = self.folder / f".{token_hex(8)}.tmp"
        try:
            shutil.copyfile(original, temporary)
            made = Digests.of(temporary)
            os.replace(temporary, self.folder / original.name)
        finally:
            temporary.unlink(missing_ok=True)
        manifest[original.name] = made

    # -- the manifest -------------------------------------------------------------------------------------------------

    def _read_manifest(self) -> tuple[dict[str, Digests], list[str]]:
        """What each copy was made from, by its name, and a line where the file is damaged."""
        path = self.folder / MANIFEST
        if not path.exists():
            return {}, []
        try:
            copies = json.loads(path.read_text(encoding="utf-8"))["copies"]
            return {name: Digests(str(one["file"]), str(one["sources"])) for name, one in copies.items()}, []
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}, [f"{DESK}/{MANIFEST} is damaged, and is made anew"]

    def _write_manifest(self, manifest: dict[str, Digests]) -> None:
        text = json.dumps({"copies": {name: asdict(one) for name, one in sorted(manifest.items())}}, indent=1)
        write_whole(self.folder / MANIFEST, f"{text}\n".encode())


def _line(state: State, names: list[str]) -> str:
    """What is told of the copies that are in one state."""
    said = f"{DESK}/: {', '.join(name[:3] for name in names)} {TOLD[state]}"
    if state in COPIED:
        return said
    return f"{said}; `make reset LESSON={names[0][:3]}` brings the course's and keeps yours beside it"


def _free_name(path: Path) -> Path:
    """A name beside a file that nothing has: 038_yours_1.ipynb. A file browser shows no more than the beginning."""
    names = (path.with_name(f"{path.stem[:3]}_yours_{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())
