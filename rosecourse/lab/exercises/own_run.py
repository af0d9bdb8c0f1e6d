"""The live figure of a lesson: the course's before and after, the control, and the reader's own part."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from textwrap import dedent
from types import FunctionType

import torch

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...desk.noting import note
from ...engine.engine import InferenceEngine
from ...errors import LessonError
from ...lessons import Lesson, lesson
from ...measure.compare import Comparison, compare_with
from ...measure.samples import Samples, figure_name
from ...measure.workload import Workload
from ...models.load import load_model, random_model
from ...models.shape import Model
from ...pages.say import say
from ...pictures.drawing import new_figure
from ...pictures.plots import lesson_figure
from ..course import course_of
from .cells import exercise
from .kept_part import keep_part, kept_part
from .racing import trouble_with

YOURS = "yours"


@dataclass(frozen=True)
class LiveWork:
    """What a live run measures. requests, new_tokens, pairs: on a CPU and on a GPU. Prompts have three tokens."""

    requests: tuple[int, int] = (16, 64)
    new_tokens: tuple[int, int] = (68, 128)
    pairs: tuple[int, int] = (7, 7)

    def workload(self, on_gpu: bool) -> Workload:
        """Requests that arrive together, each with a first token of its own."""
        params = SamplingParams(max_new_tokens=self.new_tokens[on_gpu], stop_on_eos=False)
        return Workload.of([(1 + n, 6, 7) for n in range(self.requests[on_gpu])], params)


WORK: Mapping[str, LiveWork] = {  # where the lesson's path needs other sizes than the rest
    "059": LiveWork(new_tokens=(130, 130)),  # two block boundaries in 129 gaps: more than one in a hundred
    "061": LiveWork(requests=(16, 128)),  # the gate asks for 128
}


@dataclass(frozen=True, repr=False)
class OwnRun:
    """What a live run found. comparison: before, control and after; yours: the runs of the reader's part, if it ran."""

    comparison: Comparison
    yours: Samples | None = None


def your_run(part: type, number: str, model: Model | None = None, before: str | None = None) -> OwnRun:
    """Measure a lesson here, and draw the same figure as the recorded one: before, after and the control, interleaved.

    part: the reader's class; it is a further series once its code differs from the given cell's, and is left out with a
    sentence where it fails or gives other tokens. model: None is GPT-2's shape with random weights on a GPU, and the
    shipped model on one thread of a CPU. before: an earlier lesson, whose part in the engine before is then the
    reader's own, as it passed. Raises `LessonError` for a lesson without a part to write, and `ConfigError` where no
    part of the reader's is kept.
    """
    rung = lesson(number)
    if not rung.changes:
        raise LessonError(f"lesson {rung.number} changes nothing: give 036 or a later one")
    model = model or _model_here()
    engines = _engines(rung, part, model)
    if before is not None:
        mine = course_of(before).world.engine(_with(rung.before, before, kept_part(before)), model.device)
        engines["before"] = InferenceEngine(model, engines["after"].config, mine)
    work, on_gpu = WORK.get(rung.number, LiveWork()), model.device.type != "cpu"
    comparison, more = compare_with(engines, work.workload(on_gpu), work.pairs[on_gpu])
    found = OwnRun(comparison, more.get(YOURS))
    with new_figure(3.6) as figure:
        lesson_figure(figure, comparison, f"Lesson {rung.number} here", found.yours)
    say(comparison.effect(*rung.headline))
    if found.yours:
        times = replace(comparison, after=found.yours).ratio(*rung.headline)
        say(f"Your part against before: {figure_name(*rung.headline)} {comparison.claim(times)}.")
        note(rung.number, "race", times.shown(2))
        keep_part(part, rung.number)
    return found


def _with(parts: DecodeParts, number: str, part: type) -> DecodeParts:
    """The parts of a rung with a class in the place of the one that a lesson is about."""
    return parts.with_(**{course_of(number).world.part: part})


def _model_here() -> Model:
    if torch.cuda.is_available():
        return random_model("gpt2")
    torch.set_num_threads(1)  # enough for so small a model, and less disturbed by other work on the machine
    return load_model(device="cpu")


def _engines(rung: Lesson, part: type, model: Model) -> dict[str, InferenceEngine]:
    """Before, after, and the reader's, where it can be measured."""
    course = course_of(rung.number)
    config = EngineConfig(max_batch_size=128, prefix_cache=False)
    before, after = rung.engines(model, config)
    engines = {"before": before, "after": after}
    if not differs_from_given(part, rung.number):
        return engines
    mine = course.world.engine(_with(rung.after, rung.number, part), model.device)
    if trouble := trouble_with(mine, rung, model, part.__name__):
        say(trouble)
        return engines
    return {**engines, YOURS: InferenceEngine(model, config, mine)}


def differs_from_given(part: type, number: str) -> bool:
    """Whether a class has other code than the lesson's cell gives; docstrings, comments and layout do not count."""
    name = course_of(number).exercise.name
    given = next(node for node in ast.parse(exercise(number)).body if getattr(node, "name", "") == name)
    methods = {node.name: _code_of(node) for node in ast.walk(given) if isinstance(node, ast.FunctionDef)}
    written = {name: one for name, one in vars(part).items() if inspect.isfunction(one)}
    return {name: _source_of(one) for name, one in written.items()} != methods


def _source_of(function: FunctionType) -> str:
    """A method's code; empty where its text is not to be had."""
    try:
        return _code_of(ast.parse(dedent(inspect.getsource(function))).body[0])
    except (OSError, TypeError, SyntaxError):
        return ""


def _code_of(function: ast.stmt) -> str:
    """A function as text, without docstrings, comments and layout."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(function)
