"""Bug hunts: one broken part for each lesson, told by its symptom; a checked answer, and an explanation to unfold.

The broken class is the lesson's own source with one small replacement, so that it is otherwise what the lesson has
built. What is right to answer is found by running both in the same scene; it is written down nowhere.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, unified_diff
from functools import cached_property
from inspect import getsource
from typing import Any

import torch

from ...checks import require
from ...config import EngineConfig
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...errors import LessonError
from ...kernels import triton_runs_on
from ...lessons import lesson
from ...models.load import load_model
from ...models.shape import Model
from ..course import course_of
from ..course.form import Bug
from ..course.scenes import Sessions, key_at


class Answer:
    """What an answer is worth, a line for each question: right, or a hint, or that nothing was said."""

    def __init__(self, lines: list[str], found: bool) -> None:
        self.lines, self.found = lines, found

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__


class Hunt:
    """One bug hunt: `symptom`, `part` (the broken class), `source` and `listing` (it with line numbers).

    right, broken: the lesson's `DecodeParts`, and the same with the broken part. `engines` gives one engine of each,
    `scene` makes an engine live through what shows the symptom, `key_at` reads its cache, and `answer` checks what was
    found.
    """

    key_at = staticmethod(key_at)

    def __init__(self, number: str) -> None:
        course, rung = course_of(number, "bug hunt"), lesson(number)
        self.number = number
        self.bug = course.bug
        self.symptom, self.questions = self.bug.symptom, dict(self.bug.questions)
        self.needs_triton = bool(rung.kernels)
        self.right: DecodeParts = rung.after
        right_part = course.part(self.right)
        self.right_source = getsource(right_part)
        self.source = _replaced(self.right_source, self.bug)
        self.part: type = _class_from(self.source, right_part, f"<bug hunt {number}>")
        self.broken: DecodeParts = self.right.with_(**{course.world.part: self.part})

    def __str__(self) -> str:
        asked = "\n".join(f"  {name}: {question}" for name, question in self.questions.items())
        return f"Bug hunt {self.number}, about {self.bug.minutes} minutes\n\n{self.symptom}\n\nFind\n{asked}"

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        asked = "\n".join(f"* `{name}`: {question}" for name, question in self.questions.items())
        return f"**Bug hunt** · about {self.bug.minutes} minutes\n\n{self.symptom}\n\nFind\n\n{asked}\n"

    @property
    def config(self) -> EngineConfig:
        """The configuration in which the scene is played."""
        return self.bug.config

    @property
    def listing(self) -> str:
        """The broken class with the numbers of its lines."""
        return "\n".join(f"{n:3}  {line}".rstrip() for n, line in enumerate(self.source.splitlines(), 1))

    def engines(self, model: Model) -> tuple[InferenceEngine, InferenceEngine]:
        """A right engine and a broken one over the same weights; their caches hold zeros where nothing is written.

        Raises `ConfigError` where the part would not do what it is about: a lesson's kernels where Triton does not run.
        """
        require(
            not self.needs_triton or triton_runs_on(model.device),
            f"the kernels of lesson {self.number} do not run here: use a GPU, or set TRITON_INTERPRET=1 in the "
            "environment before rosecourse is imported",
        )
        right, broken = (InferenceEngine(model, self.config, parts) for parts in (self.right, self.broken))
        for engine in (right, broken):
            for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
                cache.zero_()
        return right, broken

    def scene(self, engine: InferenceEngine) -> Iterator[Sessions]:
        """Play the scene on an engine: yields its live sessions by name, before the first step and after each."""
        return self.bug.scene(engine)

    def answer(self, **said: Any) -> Answer:
        """Check an answer such as `answer(session="A", position=64, line=12)`; None and `...` are placeholders.

        line: its number in `listing`, or its text. Raises `ConfigError` for a name that the hunt does not ask for.
        """
        strange = sorted(set(said) - set(self.questions))
        require(not strange, f"this hunt does not ask for {strange[:1]}: it asks for {', '.join(self.questions)}")
        given = {name: value for name, value in said.items() if value is not None and value is not ...}
        if not given:
            return Answer([f"no answer yet: say {', '.join(self.questions)}"], False)
        right = {name: _reads_as(given[name], self._truth[name]) for name in given}
        if "line" in given:
            right["line"] = right["line"] or self._blames(given["line"])
        lines = [self._line(name, given, right) for name in self.questions]
        found = len(given) == len(self.questions) and all(right.values())
        return Answer([*lines, "Found. Compare with the explanation below."] if found else lines, found)

    def _line(self, name: str, given: Mapping[str, Any], right: Mapping[str, bool]) -> str:
        if name not in given:
            return f"{name}: no answer yet"
        said = " ".join(str(given[name]).split())[:60]
        if right[name]:
            return f"{name}: right"
        places = self._lines_with(given[name]) if name == "line" else []
        if len(places) > 1:
            return f"{name}: {said} stands on lines {', '.join(map(str, places))}. Say which, by its number."
        return f"{name}: it is not {said}. {self.bug.hints[name]}"

    def _blames(self, said: Any) -> bool:
        """Whether a piece of text stands on lines that are to blame, and on no other."""
        places = self._lines_with(said)
        return bool(places) and set(places) <= set(self._wrong_lines)

    def _lines_with(self, said: Any) -> list[int]:
        """The numbers of the lines that hold a piece of text, whatever its spaces; none for a number."""
        piece = " ".join(said.split()) if isinstance(said, str) else ""
        if not piece or piece.isdigit():
            return []
        return [n for n, line in enumerate(self.source.splitlines(), 1) if piece in " ".join(line.split())]

    @cached_property
    def _truth(self) -> dict[str, set[str]]:
        """What may be answered to each question, found by playing the scene with both engines."""
        on_cpu = not self.needs_triton or triton_runs_on(torch.device("cpu"))
        truth = self.bug.truth(self, load_model(device="cpu" if on_cpu else "auto", dtype="float32"))
        lines = self.source.splitlines()
        return {
            **truth,
            "line": {str(n) for n in self._wrong_lines} | {lines[n - 1].strip() for n in self._wrong_lines},
        }

    @property
    def _wrong_lines(self) -> list[int]:
        """The numbers of the lines that are not in the right source."""
        wrong = self.source.splitlines()
        opcodes = SequenceMatcher(None, self.right_source.splitlines(), wrong, autojunk=False).get_opcodes()
        return [n + 1 for tag, _, _, low, high in opcodes if tag != "equal" for n in range(low, high)]


def hunt(number: str) -> Hunt:
    """The bug hunt of a lesson. Raises `LessonError` for a lesson that has none."""
    return Hunt(number)


def explanation(number: str) -> str:
    """Markdown that unfolds: what the bug was, why it shows as it does, and the lines."""
    bug_hunt = Hunt(number)
    broken, right = (source.splitlines(keepends=True) for source in (bug_hunt.source, bug_hunt.right_source))
    diff = "".join(unified_diff(broken, right, "broken", "right", n=1))
    return (
        "<details><summary><b>What it was</b> (after your answer)</summary>\n\n"
        f"{bug_hunt.bug.explanation}\n\n```diff\n{diff}```\n\n</details>\n"
    )


def _replaced(source: str, bug: Bug) -> str:
    """The source with the bug in it. Raises `LessonError` unless its place is found exactly once."""
    if source.count(bug.old) != 1:
        raise LessonError(f"{bug.old!r} stands {source.count(bug.old)} times in the source, not once")
    return source.replace(bug.old, bug.new)


def _class_from(source: str, like: type, file: str) -> type:
    """A class from a source, which may use what the module of `like` uses; tracebacks show its lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = dict(vars(sys.modules[like.__module__]))
    exec(compile(source, file, "exec", annotations.compiler_flag, dont_inherit=True), space)
    return space[like.__name__]


def _reads_as(said: Any, truth: set[str]) -> bool:
    """Whether an answer is one of those that are right, whatever its spaces, its case and its kind of number."""
    if isinstance(said, torch.Tensor) and said.numel() == 1:
        said = said.item()
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    return " ".join(str(said).split()).casefold() in {" ".join(right.split()).casefold() for right in truth}
