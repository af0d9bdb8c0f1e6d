"""Mutation testing: the code is changed in one small way, and a test must fail; again for each of a drawn few hundred.

    make mutants                            400 mutants of the engine, drawn with seed 0
    make mutants ARGS='--seed 1 --count 50'
    make mutants ARGS='--every rosecourse/kv'

A first run of the judging tests says which of them run each line, and how long they take; a mutant then meets those of
its line, the quickest first, for at most `BUDGET` seconds. A test that hangs or crashes has noticed. The working copy
is left alone. A run that was stopped goes on where it was, while the code and the tests are the same.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from tests.support.mutations import Mutation, mutations

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kv", "decode", "engine", "lessons")
JUDGES = [f"tests/{name}" for name in FOLDERS]
SCRATCH = ROOT / "build" / "mutants"
COVERAGE, DURATIONS, RESULTS = (SCRATCH / name for name in ("coverage", "durations.log", "results.jsonl"))
COPIED = ("rosecourse", "tests", "data", "notebooks", "pyproject.toml", "conftest.py", "setup.py", "README.md")
BUDGET = 10.0  # seconds of tests that a mutant meets
LONGEST = 600.0  # seconds of the clock: the machine may be busy
SLOTS = os.cpu_count() or 1
DURATION = re.compile(r"^([\d.]+)s (?:call|setup) +(tests/\S.*)$")
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)


def files(folders: list[str]) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in found)


def fingerprint() -> str:
    """Of the package and the tests: what was found out about them holds while they are the same."""
    text = b"".join((ROOT / path).read_bytes() for path in files(["rosecourse", "tests"]))
    return hashlib.sha256(text).hexdigest()[:16]


def observe(tests: list[str]) -> None:
    """Run tests, if that was not done yet: which lines each of them runs, and how long it takes."""
    mark = SCRATCH / "fingerprint"
    if mark.exists() and mark.read_text() == fingerprint():
        return
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *tests,
        "--ignore=tests/browser",
        f"--numprocesses={SLOTS}",
        "--dist=loadfile",
        "--no-loadscope-reorder",
    ]
    command += ["--durations=0", "--durations-min=0", "--cov=rosecourse", "--cov-branch", "--cov-context=test"]
    # An interrupt that comes in a line of the package's may come in coverage's own lines, whose lock stays locked then.
    command += ["--cov-report=", "-p", "no:cacheprovider", "-k", "not interrupt"]
    with DURATIONS.open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, env=os.environ | {"COVERAGE_FILE": str(COVERAGE)}, check=False)
    print(DURATIONS.read_text().splitlines()[-1], flush=True)  # how many passed
    mark.write_text(fingerprint())


def seconds_of_tests() -> dict[str, float]:
    seconds: Counter[str] = Counter()
    for line in DURATIONS.read_text().splitlines():
        if found := DURATION.match(line):
            seconds[found[2].strip()] += float(found[1])
    return seconds


def tests_of_lines() -> dict[tuple[str, int], set[str]]:
    """The tests that run each line of a file: only such as pass where nothing was changed."""
    failed = set(FAILED.findall(DURATIONS.read_text()))
    data = import_module("coverage").CoverageData(str(COVERAGE))
    data.read()
    tests: dict[tuple[str, int], set[str]] = {}
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            names = {context.rpartition("|")[0] for context in contexts if context.startswith(tuple(JUDGES))}
            tests[str(Path(file).relative_to(ROOT)), line] = names - failed
    return tests


def lines_of(mutation: Mutation) -> range:
    """The lines of the statement that a mutation is in."""
    tree = ast.parse((ROOT / mutation.file).read_bytes())
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= mutation.line <= n.end_lineno]
    innermost = max(around, key=lambda n: n.lineno)
    return range(innermost.lineno, mutation.line + 1)


def judges_of(mutation: Mutation, tests: dict, seconds: dict[str, float]) -> list[str]:
    """The tests of its line, the quickest first, as many as fit into the budget."""
    lines = [tests.get((mutation.file, line), set()) for line in lines_of(mutation)]
    chosen, left = [], BUDGET
    for name in sorted(set().union(*lines), key=lambda name: (seconds.get(name, 0.0), name)):
        left -= seconds.get(name, 0.0) + 0.005
        if chosen and left < 0:
            break
        chosen.append(name)
    return chosen


# -- one mutant ---------------------------------------------------------------------------------------------------


def judge(copy: Path, names: list[str]) -> None:
    """In a child of this process: run tests over a changed copy, and end with pytest's exit code."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(6 * BUDGET), int(6 * BUDGET)))
    with open(copy.with_suffix(".log"), "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rosecourse", "tests")]:
        del sys.modules[name]
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    code = import_module("pytest").main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", *names])
    os._exit(int(code))


class Slot:
    """A copy of the course in which one mutant at a time is judged."""

    def __init__(self, number: int) -> None:
        self.copy = SCRATCH / f"copy{number}"
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.copy / name)
        self.child = 0

    def start(self, mutation: Mutation, names: list[str]) -> None:
        self.mutation, self.begin, self.source = mutation, time.monotonic(), (ROOT / mutation.file).read_bytes()
        (self.copy / mutation.file).write_bytes(mutation.applied(self.source))
        self.child = os.fork()
        if not self.child:
            try:
                judge(self.copy, names)
            finally:
                os._exit(70)

    def verdict(self) -> str | None:
        """`killed` or `survived` when the tests have ended, or None."""
        found, status = os.waitpid(self.child, os.WNOHANG)
        if not found:
            if time.monotonic() - self.begin < LONGEST:
                return None
            os.killpg(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            status = signal.SIGKILL
        (self.copy / self.mutation.file).write_bytes(self.source)
        self.child = 0
        code = os.waitstatus_to_exitcode(status)
        if code in (4, 5) and " error" not in self.copy.with_suffix(".log").read_text():  # of a module that breaks
            raise RuntimeError(f"the tests of {self.mutation} were not found: see {self.copy.with_suffix('.log')}")
        return "survived" if code == 0 else "killed"


def run(drawn: list[Mutation]) -> dict[Mutation, str]:
    """The verdict on each: killed, survived, or not run by any test."""
    done = {}
    if RESULTS.exists():
        known = [json.loads(line) for line in RESULTS.read_text().splitlines()]
        done = {Mutation(*mutation): verdict for *mutation, verdict in known}
    tests, seconds = tests_of_lines(), seconds_of_tests()
    names = {mutation: judges_of(mutation, tests, seconds) for mutation in drawn}
    results = {m: done.get(m, "not run") for m in drawn if m in done or not names[m]}
    waiting = [mutation for mutation in drawn if mutation not in results]
    for module in ("torch", "transformers.models.gpt2.modeling_gpt2", "pandas", "hypothesis", "pytest", "nbformat"):
        import_module(module)  # once, for all children; nothing of the course, and nothing is computed
    slots = [Slot(number) for number in range(SLOTS)]
    with RESULTS.open("a") as log:
        while waiting or any(slot.child for slot in slots):
            for slot in slots:
                if slot.child and (verdict := slot.verdict()):
                    results[slot.mutation] = verdict
                    print(json.dumps([*slot.mutation, verdict]), file=log, flush=True)
                    print(f"{len(results)} of {len(drawn)}: {verdict}: {slot.mutation.shown(slot.source)}", flush=True)
                if not slot.child and waiting:
                    mutation = waiting.pop()
                    slot.start(mutation, names[mutation])
            time.sleep(0.05)
    return results


# -- the report ---------------------------------------------------------------------------------------------------


def report(results: dict[Mutation, str]) -> str:
    """A row for each folder, and the survivors."""
    counts: dict[str, Counter[str]] = {}
    for mutation, verdict in results.items():
        counts.setdefault("/".join(mutation.file.split("/")[:2]), Counter())[verdict] += 1
    counts["all"] = sum(counts.values(), Counter())
    rows = [
        "| folder | mutants | killed | survived | run by no test | killed, of all | of those that run |",
        "|---" * 7 + "|",
    ]
    for folder, count in sorted(counts.items()):
        ran = count["killed"] + count["survived"]
        shares = f"{count['killed'] / count.total():.1%} | {count['killed'] / max(ran, 1):.1%}"
        rows.append(
            f"| {folder} | {count.total()} | {count['killed']} | {count['survived']} | {count['not run']} | {shares} |"
        )
    alive = [
        f"{verdict}: {m.shown((ROOT / m.file).read_bytes())}" for m, verdict in results.items() if verdict != "killed"
    ]
    return "\n".join([*sorted(alive), "", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutation testing of the engine.")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--count", type=int, default=400, help="how many")
    parser.add_argument("--every", action="store_true", help="all of them")
    parser.add_argument("folders", nargs="*", default=[f"rosecourse/{name}" for name in FOLDERS])
    args = parser.parse_args()
    os.environ.setdefault("TRITON_INTERPRET", "1")
    every = [m for path in files(args.folders) for m in mutations(str(path), (ROOT / path).read_bytes())]
    drawn = every if args.every else random.Random(args.seed).sample(every, min(args.count, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, seed {args.seed}", flush=True)
    observe(JUDGES)
    print(report(run(drawn)))


if __name__ == "__main__":
    main()
