"""The live figure of a lesson: the course's before and after, the control, and the reader's own part."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import ne

import torch

from ...checks import told
from ...config import PACKAGE, EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...desk.notebooks import NOTEBOOKS, cells_of, source_of
from ...desk.noting import note
from ...engine.engine import InferenceEngine
from ...errors import LessonError
from ...lessons import Lesson, lesson
from ...measure.compare import Comparison, compare_with
from ...measure.samples import Samples, figure_name
from ...measure.workload import Runner, Workload, run_scheduler, run_streaming
from ...models.load import load_model, random_model
from ...models.shape import Model
from ...pages.say import say
from ...pages.shared import page_of
from ...pictures.drawing import new_figure
from ...pictures.plots import lesson_figure
from ..course import course_of
from .part_file import keep_part, kept_part, text_of

YOURS = "yours"
PAIRS = 7
OTHERS_CHANGE = ("delivery", "ops")  # parts beside which the lesson changes others, which may round otherwise
SIMULATED = "{} gives the same tokens. It is not timed: on a CPU its graphs or kernels run in a simulation."


@dataclass(frozen=True)
class LiveWork:
    """What a live run measures.

    requests, new_tokens: on a CPU and on a GPU. prompt_tokens, samples: of each request. interval: seconds between two;
    with any, tokens in half precision may differ by rounding. on_a_cpu: why time says little of the lesson there.
    simulated: whether the part's graphs or kernels would be a simulation there.
    """

    requests: tuple[int, int] = (16, 64)
    new_tokens: tuple[int, int] = (68, 128)
    prompt_tokens: int = 3
    samples: int = 1
    interval: float = 0.0
    runner: Runner = run_scheduler
    on_a_cpu: str = ""
    simulated: bool = False

    def workload(self, on_gpu: bool) -> Workload:
        """Requests that arrive together, each with a first token of its own."""
        prompts = [(1 + n, *[6] * (self.prompt_tokens - 1)) for n in range(self.requests[on_gpu])]
        return self._of(prompts, self.new_tokens[on_gpu])

    def mixed(self, new_tokens: int) -> Workload:
        """A few requests of many lengths, to compare tokens."""
        return self._of([(3 * n + 1,) * n for n in range(1, 9)], new_tokens)

    def _of(self, prompts: list[tuple[int, ...]], new_tokens: int) -> Workload:
        params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
        return Workload.of(prompts, params, self.interval, self.samples, readers="one")


ROUNDS = LiveWork(interval=1e-9)  # all at once, and rounding allowed
WORK: Mapping[str, LiveWork] = {  # where the lesson's path needs other work than the rest
    "059": LiveWork(new_tokens=(130, 130)),  # two block boundaries in 129 gaps: more than one in a hundred
    "061": LiveWork(requests=(16, 128)),  # the gate asks for 128
    "065": LiveWork((4, 16), (64, 64), prompt_tokens=36, samples=8, on_a_cpu="a copy has no launch to save"),
    "066": LiveWork((8, 64), (36, 128), on_a_cpu="a graph replays one operation after another", simulated=True),
    "067": LiveWork((8, 64), (36, 128), on_a_cpu="there is nobody to wait for, and nothing to run ahead of"),
    "068": LiveWork(
        new_tokens=(24, 128), runner=run_streaming, on_a_cpu="nothing is launched ahead, and a prefill has no graph"
    ),
    "069": replace(ROUNDS, on_a_cpu="`add_norm` is two operations, and no kernel has to be started"),
    "070": replace(ROUNDS, on_a_cpu="both engines run the same operations", simulated=True),
    "071": LiveWork((4, 64), (20, 128), interval=1e-9, on_a_cpu="no kernel waits for another", simulated=True),
}
GPU_ALONE = "On a CPU {}: only a GPU shows what the lesson gains."


@dataclass(frozen=True, repr=False)
class OwnRun:
    """What a live run found. comparison: before, control and after; yours: the runs of the reader's part, if it ran."""

    comparison: Comparison
    headline: tuple[str, str]
    yours: Samples | None = None

    @property
    def against_before(self) -> Comparison | None:
        """Before, control and the reader's part; None if that did not run."""
        return replace(self.comparison, after=self.yours) if self.yours else None

    def __repr__(self) -> str:
        sides = {"after": self.comparison, YOURS: self.against_before}
        said = [f"{name} {one.ratio(*self.headline).shown(2)}" for name, one in sides.items() if one]
        return f"{figure_name(*self.headline)}, times better than before: {', '.join(said)}"


def your_run(part: type, number: str, model: Model | None = None, before: str | None = None) -> OwnRun:
    """Measure a lesson here, and draw the same figure as the recorded one: before, after and the control, interleaved.

    part: the reader's class; it is a further series once its text differs from the given cell's, and is left out with a
    sentence where it fails, gives other tokens, or would run in a simulation. model: None is GPT-2's shape with
    random weights on a GPU, and the shipped model on one thread of a CPU. before: an earlier lesson, whose part in the
    engine before is then the reader's own, as it passed. Raises `LessonError` for a lesson without a part to write, and
    `ConfigError` where no part of the reader's is kept.
    """
    rung = lesson(number)
    if not rung.changes:
        raise LessonError(f"lesson {rung.number} changes nothing: give 036 or a later one")
    model = model or _model_here()
    engines = _engines(rung, part, model)
    if before is not None:
        kept = _with(rung.before, before, kept_part(before), model)
        engines["before"] = InferenceEngine(model, engines["after"].config, kept)
    work, on_gpu = WORK.get(rung.number, LiveWork()), model.device.type != "cpu"
    comparison, more = compare_with(engines, work.workload(on_gpu), PAIRS, work.runner)
    found = OwnRun(comparison, rung.headline, more.get(YOURS))
    with new_figure(3.6) as figure:
        lesson_figure(figure, comparison, f"Lesson {rung.number} here", found.yours)
    remark = GPU_ALONE.format(work.on_a_cpu) if work.on_a_cpu and not on_gpu else ""
    say(comparison.effect(*rung.headline), remark)
    if mine := found.against_before:
        times = mine.ratio(*rung.headline)
        say(f"Your part against before: {figure_name(*rung.headline)} {comparison.claim(times)}.")
        note(rung.number, "run", times.shown(2))
        keep_part(part, rung.number)
    return found


def _with(parts: DecodeParts, number: str, part: type, model: Model) -> DecodeParts:
    """The parts of a rung with a class in the place of the one that a lesson is about, as an engine can try it."""
    world = course_of(number).world
    return world.engine(parts.with_(**{world.part: part}), model.device)


def _model_here() -> Model:
    if torch.cuda.is_available():
        return random_model("gpt2")
    torch.set_num_threads(1)  # enough for so small a model, and less disturbed by other work on the machine
    return load_model(device="cpu")


def _engines(rung: Lesson, part: type, model: Model) -> dict[str, InferenceEngine]:
    """Before, after, and the reader's, where it can be measured."""
    config = EngineConfig(max_batch_size=128, prefix_cache=False)
    before, after = rung.engines(model, config)
    engines = {"before": before, "after": after}
    if not differs_from_given(part, rung.number):
        return engines
    mine = _with(rung.after, rung.number, part, model)
    if trouble := trouble_with(mine, rung, model, part.__name__):
        say(trouble)
        return engines
    return {**engines, YOURS: InferenceEngine(model, config, mine)}


def trouble_with(mine: DecodeParts, rung: Lesson, model: Model, name: str) -> str:
    """Why a part is not measured: it raises, gives other tokens than before the lesson, or runs in a simulation."""
    work, part = WORK.get(rung.number, LiveWork()), course_of(rung.number).world.part
    simulated = work.simulated and model.device.type == "cpu"
    if part == "ops" and model.dtype != torch.float32:  # right ones round otherwise, and a tie decides for either word
        model = load_model(device=model.device.type, dtype="float32")
    workloads = [work.mixed(4 if simulated else 12)]
    if not simulated:
        workloads.append(work.workload(model.device.type != "cpu"))
    right = _completions(rung.after if part in OTHERS_CHANGE else rung.before, model, workloads, work.runner)
    try:
        given = _completions(mine, model, workloads, work.runner)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the reader's code raises
        why = f"raised {told(error)}"
    else:
        if given == right:
            return SIMULATED.format(name) if simulated else ""
        why = f"gives other tokens than before the lesson in {sum(map(ne, given, right))} of {len(given)} requests"
    return f'{name} {why}. It is left out: check({name}, "{rung.number}") says what is wrong.'


def _completions(parts: DecodeParts, model: Model, workloads: list[Workload], runner: Runner) -> list[list[int]]:
    """The tokens of all requests, in an engine of small blocks."""
    engine = InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=128, prefix_cache=False), parts)
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        cache.zero_()  # a slot that is never written must not depend on what lay in memory
    return [ids for workload in workloads for ids in runner(engine, workload).completions or []]


def differs_from_given(part: type, number: str) -> bool:
    """Whether a class is of another text than the lesson's notebook gives.

    Without the notebooks, as in an installed wheel, every part is the reader's own.
    """
    given = given_cell(number).strip()
    return not given or given not in text_of(part)


def given_cell(number: str) -> str:
    """A lesson's exercise as its page gives it, before its `check`; empty where there are no notebooks."""
    pages, given = (PACKAGE.parent / NOTEBOOKS).glob(page_of(number)), ""
    for cell in (cell for page in pages for cell in cells_of(page)):
        source = source_of(cell)
        if "exercise" in cell["metadata"].get("tags", ()):
            given = source
        if source.startswith("check(") and f'"{number}"' in source:
            return given
    return ""
