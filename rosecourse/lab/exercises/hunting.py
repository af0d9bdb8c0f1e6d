"""Bug hunts: one broken part for each lesson, described by its symptom; a checked answer.

The broken class is a colleague's version of the lesson's part, written in another style, so that it must be read and
watched. The right answers are found by playing the same scene with the lesson's part and with the broken one.
"""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...checks import require, shown
from ...decode import DecodeParts
from ...desk.noting import note
from ...engine.engine import InferenceEngine
from ...kernels import triton_runs_on
from ...kv.pool import KVPool
from ...lessons import lesson
from ...models.load import load_model
from ...models.shape import Model
from ...pages.html import RIGHT, WRONG
from ...pages.html import bullets as html_bullets
from ...pages.say import Markdown
from ...request.session import InferenceSession
from ..course import course_of
from ..course.scenes import key_at


@dataclass(frozen=True, repr=False)
class Answer:
    """What an answer is worth, a line for each question: right, or a hint, or that nothing was said."""

    lines: list[str]
    found: bool = False

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        ticks = [RIGHT if line.endswith(": right") or self.found else WRONG for line in self.lines]
        marked = zip(ticks, self.lines, strict=True)
        return html_bullets(line if "no answer yet" in line else f"{tick} {line}" for tick, line in marked)


class Hunt:
    """One bug hunt: `symptom`, `part` (the broken class), `source` and `listing` (it with line numbers).

    mended: the same class without its fault. replaces: its name in `DecodeParts`. right, broken: the lesson's
    `DecodeParts`, and the same with the broken part. `engines` gives one engine of each, `scene` makes an engine live
    through what shows the symptom, `key_at` reads its cache, and `answer` checks what was found.
    """

    def __init__(self, number: str) -> None:
        course, rung = course_of(number, "bug hunt"), lesson(number)
        self.number, self.bug = number, course
        self._engine_of = course.world.engine
        self.config, self.symptom, self.questions = self.bug.config, self.bug.symptom, dict(self.bug.questions)
        let_in = self.config.triton_kv_append_min_batch <= self.config.max_batch_size
        self.needs_triton = bool(rung.kernels) and let_in
        self.source = self.bug.source
        self.mended_source = self.source.replace(self.bug.fault, self.bug.mended)
        self.part = _class_from(self.source, f"<bug hunt {number}>")
        self.mended = _class_from(self.mended_source, f"<bug hunt {number}, mended>")
        self.replaces = course.replaces or course.world.part
        self.right: DecodeParts = rung.after
        self.broken: DecodeParts = self.right.with_(**{self.replaces: self.part})
        self._made: WeakKeyDictionary[InferenceEngine, DecodeParts] = WeakKeyDictionary()

    def __str__(self) -> str:
        tools = _bullets(f"`bug.scene(engine)` yields {self.bug.yields}", *self.bug.tools)
        asked = _bullets(*(f"`{name}`: {question}" for name, question in self.questions.items()))
        return f"{self.symptom}\n\nWhat helps:\n\n{tools}\nFind:\n\n{asked}"

    __repr__ = _repr_markdown_ = __str__

    @property
    def listing(self) -> Markdown:
        """The broken class with the numbers of its lines."""
        lines = enumerate(self.source.splitlines(), start=1)
        numbered = "\n".join(f"{number:3}  {line}" if line else "" for number, line in lines)
        return Markdown(f"```python\n{numbered}\n```")

    def engines(self, model: Model | None = None) -> tuple[InferenceEngine, InferenceEngine]:
        """A right engine and a broken one over the same weights; their caches hold zeros where nothing is written.

        model: None is the scene's own, or the shipped one. Raises `ConfigError` where the part would not do what it is
        about: a lesson's kernels where Triton does not run.
        """
        model = model or self._model
        require(
            not self.needs_triton or triton_runs_on(model.device),
            f"the kernels of lesson {self.number} do not run here: use a GPU, or set TRITON_INTERPRET=1 in the "
            "environment before rosecourse is imported",
        )
        return self._engine(model, self.right), self._engine(model, self.broken)

    def _engine(self, model: Model, parts: DecodeParts) -> InferenceEngine:
        engine = InferenceEngine(model, self.config, self._engine_of(parts, model.device))
        for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
            cache.zero_()
        self._made[engine] = parts
        return engine

    def scene(self, engine: InferenceEngine) -> Iterator[dict[str, Any]]:
        """Play the scene on an engine: yields its live sessions by name, before the first step and after each.

        An engine of `engines` begins as a new one each time: who looks twice sees the same blocks.
        """
        if engine in self._made:
            vars(engine).update(vars(self._engine(engine.model, self._made[engine])))
        return self.bug.scene(engine)

    def key_at(self, kv: KVPool, session: InferenceSession, position: int, layer_idx: int = 0) -> torch.Tensor:
        """The key [H, D] that a session's table shows at a position. kv: an engine's cache, `engine.kv`.

        Raises `ConfigError` for a position that is not in the cache.
        """
        last = session.num_cached_tokens - 1
        require(0 <= position <= last, f"position {shown(position)} is not in the cache: give one of 0 to {last}")
        return key_at(kv, session, position, layer_idx)

    def answer(self, **said: Any) -> Answer:
        """Check an answer such as `answer(session="A", position=64, line=12)`; None and `...` are placeholders.

        line: its number in `listing`, or its text. An answer of the wrong kind gets a line that says which is wanted,
        and so does one to a question that the hunt does not ask.
        """
        names = ", ".join(self.questions)
        strange = [name for name in said if name not in self.questions]
        if strange:
            return Answer([f"{name}: not asked for; give {names}" for name in strange])
        given = {name: _plain(value) for name, value in said.items() if value is not None and value is not ...}
        if not given:
            return Answer([f"no answer yet: say {names}"])
        lines = [self._judge(name, given.get(name)) for name in self.questions]
        if not all(line.endswith(": right") for line in lines):
            return Answer(lines)
        note(self.number, "found")
        return Answer([*lines, "Found. Compare with the explanation below."], True)

    def _judge(self, name: str, said: Any) -> str:
        if said is None:
            return f"{name}: no answer yet"
        text, truth = " ".join(str(said).split()), {right.casefold() for right in self._truth[name]}
        places = self._lines_with(text) if name == "line" and text and not text.isdigit() else []
        if (places and {*places} <= {*self._wrong_lines}) or text.casefold() in truth:
            return f"{name}: right"
        if len(places) > 1:
            return f"{name}: {text[:60]} stands on lines {', '.join(map(str, places))}. Say which, by its number."
        return f"{name}: it is not {text[:60] or 'nothing'}. {self.bug.hints[name]}"

    def _lines_with(self, text: str) -> list[int]:
        """The numbers of the lines that are a piece of text, or else that hold it, whatever its spaces."""
        lines = [" ".join(line.split()) for line in self.source.splitlines()]
        same = [n for n, line in enumerate(lines, 1) if text == line]
        return same or [n for n, line in enumerate(lines, 1) if text in line]

    @cached_property
    def _truth(self) -> dict[str, set[str]]:
        """What may be answered to each question, found by playing the scene with both engines."""
        return {**self.bug.truth(self), "line": {str(n) for n in self._wrong_lines}}

    @cached_property
    def _model(self) -> Model:
        if self.bug.model is not None:
            return self.bug.model()
        on_cpu = not self.needs_triton or triton_runs_on(torch.device("cpu"))
        return load_model(device="cpu" if on_cpu else "auto", dtype="float32")

    @property
    def _wrong_lines(self) -> list[int]:
        first = self.source[: self.source.index(self.bug.fault)].count("\n") + 1
        return list(range(first, first + self.bug.fault.rstrip("\n").count("\n") + 1))


def hunt(number: str) -> Hunt:
    """The bug hunt of a lesson. Raises `LessonError` for a lesson that has none."""
    return Hunt(number)


def _bullets(*items: str) -> str:
    return "".join(f"* {item}\n" for item in items)


def _class_from(source: str, file: str) -> type:
    """The last class of a source; tracebacks and debuggers show its lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": file}
    exec(compile(source, file, "exec", dont_inherit=True), space)
    *_, name = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return space[name]


def _plain(said: Any) -> Any:
    """A tensor of one element as its number, and 64.0 as 64; anything else as it is."""
    if isinstance(said, torch.Tensor) and said.numel() == 1:
        said = said.item()
    return int(said) if isinstance(said, float) and said.is_integer() else said
