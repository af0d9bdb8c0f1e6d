"""Parts that were written without a look at the checker: what their headers say, and how `check` judges them.

`python -m tests.support.adversary [words...]` judges all files whose names contain one of the words, prints a table by
lesson and cause, and lists each miss.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

FOLDER = Path(__file__).parents[1] / "lab" / "adversary"
ROOT = FOLDER.parents[2]
LIMIT = 90.0  # seconds for one part, interpreter and imports included
KERNEL_LESSON = "061"  # its kernels run in Triton's interpreter
KINDS = ("refused", "exact", "vague", "wrong cause", "passed wrongly", "right passed", "right refused", "no verdict")

JUDGE = """
import importlib.util, json, os, signal, sys
from rosecourse.lab import check

def judge(path, name, lesson):
    spec = importlib.util.spec_from_file_location("learner_part", path)
    module = sys.modules["learner_part"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    verdict = check(getattr(module, name), lesson)
    return {"passed": verdict.passed, "cause": verdict.cause and verdict.cause.value,
            "or_else": verdict.or_else and verdict.or_else.value, "text": str(verdict)}

for line in sys.stdin:  # a fork for each: what one part does to the process does not reach the next
    *part, limit = json.loads(line)
    if not os.fork():
        signal.setitimer(signal.ITIMER_REAL, limit)
        said = {}
        try:
            said = judge(*part)
        except BaseException as error:
            said = {"text": f"{type(error).__name__}: {error}"}
        finally:
            print("\\n" + json.dumps(said), flush=True)
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.wait()[1])
    print("\\n" + json.dumps({"ended": status}), flush=True)
"""


@dataclass(frozen=True)
class Adversary:
    """A part in a file of its own. cause: the true one, "right" for a right part. shows: where the fault can be seen:
    cpu, gpu, both, or disclosed for nowhere."""

    path: Path
    lesson: str
    cause: str
    shows: str

    @property
    def is_right(self) -> bool:
        return self.cause == "right"

    @property
    def shows_here(self) -> bool:
        """Whether a CPU can show what is wrong with it."""
        return self.is_right or self.shows in ("cpu", "both")

    def __str__(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Judged:
    """What `check` said of a part; cause is "none" where it named none, text why there is no verdict if passed is
    None. or_else: the other cause where it named two."""

    part: Adversary
    passed: bool | None
    cause: str
    text: str
    or_else: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it counts as, of `KINDS`."""
        if self.passed is None:
            return ("no verdict",)
        if self.part.is_right:
            return ("right passed" if self.passed else "right refused",)
        if self.passed:
            return ("passed wrongly",)
        if self.part.cause not in (self.cause, self.or_else):
            return ("refused", "wrong cause")
        return ("refused", "vague" if self.or_else else "exact")

    @property
    def is_missed(self) -> bool:
        return not {"exact", "right passed"} & set(self.kinds)


def adversaries(folder: Path = FOLDER) -> list[Adversary]:
    """All parts of the folder and of those in it, in the order of their names."""
    return [_read(path) for path in sorted(folder.rglob("[0-9]*.py"))]


def _read(path: Path) -> Adversary:
    found = dict(re.findall(r"^(?:\"\"\")?(lesson|verdict|cause|shows): *(\S+)", path.read_text(), re.MULTILINE))
    if set(found) != {"lesson", "verdict", "cause", "shows"}:
        raise ValueError(f"{path} has no header with lesson, verdict, cause and shows")
    cause = "right" if found["verdict"] == "right" else found["cause"]
    return Adversary(path, found["lesson"], cause, found["shows"])


def judged(parts: Sequence[Adversary], limit: float = LIMIT, processes: int = 1) -> list[Judged]:
    """The verdicts on parts, in their order; each is made in a process of its own that has `limit` seconds.

    processes: how many parts are judged at a time.
    """
    kinds = [[part for part in parts if (part.lesson == KERNEL_LESSON) == kernels] for kernels in (False, True)]
    shares = [kind[start::processes] for kind in kinds for start in range(processes)]
    with ThreadPoolExecutor(processes) as several:
        done = [one for share in several.map(lambda share: _judged_in_turns(share, limit), shares) for one in share]
    return sorted(done, key=lambda one: parts.index(one.part))


def _judged_in_turns(parts: Sequence[Adversary], limit: float) -> list[Judged]:
    """The verdicts on parts that are all of lesson 061, or none; one interpreter imports the course for them."""
    if not parts:
        return []
    names = {part: "MyBlockTables" if part.lesson == "036" else "MyKVAppend" for part in parts}
    asked = [json.dumps([str(part.path), names[part], part.lesson, limit]) for part in parts]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["TRITON_INTERPRET"] = str(int(parts[0].lesson == KERNEL_LESSON))
    command = [sys.executable, "-c", JUDGE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, input="\n".join(asked) + "\n")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    found = iter(lines)
    return [_read_verdict(part, found, limit, done.stderr) for part in parts]


def _read_verdict(part: Adversary, found: Iterator[dict[str, Any]], limit: float, errors: str) -> Judged:
    """What was said of the next part, which is followed by how its process ended."""
    said: dict[str, Any] = next(found, {"ended": 1})
    ended = said["ended"] if "ended" in said else next(found)["ended"]
    if "passed" in said:
        return Judged(part, said["passed"], said["cause"] or "none", said["text"], said["or_else"] or "")
    if ended == -signal.SIGALRM:
        return Judged(part, None, "none", f"no verdict in {limit:g} seconds")
    last = errors.strip().splitlines()[-1:] or ["nothing was said"]
    return Judged(part, None, "none", f"ended with {ended}: {said.get('text', last[0]):.200}")


def table(all_judged: Sequence[Judged]) -> Iterator[str]:
    """The numbers by lesson and by cause, of parts that a CPU can show, then a line for each miss."""
    shown = [one for one in all_judged if one.part.shows_here]
    hidden = [one for one in all_judged if not one.part.shows_here]
    yield f"{'':20}{'parts':>7}" + "".join(f"{kind:>16}" for kind in KINDS)
    for words, key in (("lesson", "lesson"), ("cause", "cause")):
        for value in sorted({getattr(one.part, key) for one in shown}):
            yield _line(f"{words if words == 'lesson' else ''} {value}".strip(), _with(shown, key, value))
        yield ""
    yield _line("all", shown)
    if hidden:
        yield _line("not seen on a CPU", hidden)
    yield ""
    for one in shown:
        if one.is_missed:
            told = (
                f"told {' or '.join(filter(None, (one.cause, one.or_else)))}" if one.passed is False else one.kinds[0]
            )
            yield f"{one.part!s:45} {one.part.cause:18} {told}: {_start(one.text)}"


def _with(all_judged: Iterable[Judged], key: str, value: str) -> list[Judged]:
    return [one for one in all_judged if getattr(one.part, key) == value]


def _line(name: str, all_judged: Sequence[Judged]) -> str:
    counted = Counter(kind for one in all_judged for kind in one.kinds)
    return f"{name:20}{len(all_judged):>7}" + "".join(f"{counted[kind] or '':>16}" for kind in KINDS)


def _start(text: str) -> str:
    found = re.search(r"Wrong: *(.*)|Correct, but (.*)|no verdict.*|ended with.*", text)
    return found[0][:150] if found else text.splitlines()[0][:150]


def main(words: Sequence[str]) -> None:
    """Judge all parts whose names contain one of the words, or all."""
    chosen = [part for part in adversaries() if not words or any(word in str(part) for word in words)]
    at_once = 4 * (os.cpu_count() or 1)
    done: list[Judged] = []
    for start in tqdm(range(0, len(chosen), at_once), unit_scale=at_once, unit="part"):
        done += judged(chosen[start : start + at_once], processes=os.cpu_count() or 1)
    print("\n".join(table(done)))


if __name__ == "__main__":
    main(sys.argv[1:])
