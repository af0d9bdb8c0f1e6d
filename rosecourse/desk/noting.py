"""What a lesson tells: that something was done. It is stored if this process works in the learner's folder.

Two notebooks may write at the same time. That each has read what the other has written is what the lock is for.
"""

from __future__ import annotations

from datetime import date

from filelock import FileLock, Timeout

from ..records.whole_file import write_whole
from .places import desk_here
from .progress import FILE, Done, RaceRun, progress_in, tell

LOCK = ".progress.lock"
PATIENCE = 5.0  # seconds that a lesson waits for another one that is writing; it takes milliseconds


def note_read(number: str) -> None:
    """The last cell of a lesson was reached."""
    _note(number, Done(read=_today()))


def note_built(number: str) -> None:
    """A part of the learner's has passed the check of a lesson."""
    _note(number, Done(built=_today()))


def note_found(number: str) -> None:
    """The bug of a lesson was found."""
    _note(number, Done(found=_today()))


def note_race(number: str, said: str) -> None:
    """A race against the lesson before has ended as is `said`. It counts once the lesson's part is built."""
    _note(number, Done(race=RaceRun(said, _today())))


def _today() -> str:
    return date.today().isoformat()


def _note(number: str, done: Done) -> None:
    """Store what was done, if this is the learner's process. What cannot be stored costs a line, and no lesson."""
    folder = desk_here()
    if folder is None:
        return
    try:
        with FileLock(folder / LOCK, timeout=PATIENCE):
            progress = progress_in(folder)
            if done.race is not None and not progress.of(number).built:
                return
            write_whole(folder / FILE, progress.with_(number, done).text().encode())
    except (OSError, Timeout) as error:
        tell(f"Your progress cannot be stored in {folder.name}/{FILE}: {error}")
