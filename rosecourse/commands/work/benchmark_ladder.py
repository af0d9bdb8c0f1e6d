"""Rungs of the ladder under some workloads, in turns, as a table and a picture."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure
from tqdm import tqdm

from ...checks import require
from ...engine.engine import InferenceEngine
from ...lessons import LESSONS, Lesson, lesson
from ...lessons.workloads import ARTICLES, SMALL
from ...measure.floor import copy_bandwidth
from ...measure.holding import Holding, holding_for, one_at_a_time
from ...measure.metrics import DEFINITIONS
from ...measure.provenance import provenance
from ...measure.workload import RUNNERS, Run, Runner, Workload
from ...models.shape import Model
from ...pictures.plots import ladder_throughput
from ...records.assignments import Assignment, Order, article_assignment, burst_assignment
from ...records.json_file import require_writable_json, write_json
from ...records.measured import MeasuredLadder
from ...records.recorder import UNITS
from ...records.whole_file import require_writable_file, write_whole
from ..benchmark_ladder import KNOWN, make_parser
from ..flags import command_line, flags_of, require_counts, text_of
from .building import config_of, ids_of, model_of
from .record import (
    MIXED,
    article_of,
    name_the_model,
    require_room,
    traffic_of,
    workloads_of,
)

LEASTS = {"rounds": 1, "num_requests": 1, "max_new_tokens": 2, "max_batch_size": 1}
UNTOLD = ("picture",)  # a flag that no figure depends on
ROW_INCHES, HEAD_INCHES = 0.3, 1.6  # of the picture: a rung, and what is around the rungs of a workload


# -- before the work ----------------------------------------------------------------------------------------------


def rungs_of(args: argparse.Namespace) -> tuple[Lesson, ...]:
    """The rungs that the flags name, in the order of the ladder. Raises `ConfigError` for fewer than two."""
    first, last = vars(args)["from"], args.to
    if args.lessons is None:
        start = LESSONS[0] if first is None else lesson(first)
        end = LESSONS[-1] if last is None else lesson(last)
        chosen = tuple(rung for rung in LESSONS if start.number <= rung.number <= end.number)
    else:
        require(first is None and last is None, "--lessons names each rung: leave --from and --to out")
        numbers = {lesson(name.strip()).number for name in args.lessons.split(",")}
        chosen = tuple(rung for rung in LESSONS if rung.number in numbers)
    told = f"{len(chosen)} rung{'s' * (len(chosen) != 1)}"
    require(len(chosen) > 1, f"a ladder of {told} has nothing to compare: name 2 or more")
    return chosen


def tasks_of(args: argparse.Namespace, model: Model, rungs: tuple[Lesson, ...], command: str) -> list[Assignment]:
    """What is measured: a workload for each name, of the articles' sizes on a GPU, smaller on a CPU."""
    order = Order(ids_of(args.prompt, model), args.seed, config_of(args), command, flags_of(args))
    known = ARTICLES if model.device.type == "cuda" else SMALL
    tasks = [
        burst_assignment(traffic_of(model, args), model.shape.vocab_size, order)
        if name == MIXED
        else article_assignment(article_of(name, args, known), order)
        for name in workloads_of(args, KNOWN)
    ]
    return [replace(task, rungs=rungs) for task in tasks]


# -- the work -----------------------------------------------------------------------------------------------------


class Forecast:
    """Runs a workload, and says after the round that warms up how long the others will take."""

    def __init__(self, runner: Runner, runs: int, rounds: int) -> None:
        """runs: of a round; rounds: those after the first."""
        self.runner, self.left, self.rounds = runner, runs, rounds
        self.start = time.perf_counter()

    def __call__(self, engine: InferenceEngine, workload: Workload) -> Run:
        run = self.runner(engine, workload)
        self.left -= 1
        if self.left == 0:
            seconds = self.rounds * (time.perf_counter() - self.start)
            tqdm.write(f"  warmed up; the rounds that count take about {seconds:,.0f} s")  # beside the bar
        return run


def climbed(model: Model, task: Assignment, rounds: int, bandwidth: float) -> MeasuredLadder:
    """Measure the rungs under one workload, and print what is done and what was found."""
    holding = holding_for(model, task.config, len(task.rungs))
    print(heading(task, rounds, holding), flush=True)
    runs = len(task.rungs) * (2 if holding is one_at_a_time else 1)
    forecast = Forecast(RUNNERS[task.benchmark], runs, rounds)
    found = MeasuredLadder.of(model, task, rounds, bandwidth, forecast, holding)
    print("\n".join(rows(found)), flush=True)
    return found


def heading(task: Assignment, rounds: int, holding: Holding) -> str:
    """What is going to be measured, in a line."""
    requests, largest = len(task.workload.prompts), task.config.max_batch_size
    held = "; one engine at a time, as memory is short" if holding is one_at_a_time else ""
    turns = f"{len(task.rungs)} rungs, {rounds} round{'s' * (rounds > 1)} after one that warms up"
    how = task.benchmark.removeprefix("benchmark_")
    return f"=== {task.name}: {requests} completions, batch {largest} ({how}); {turns}{held} ==="


def rows(found: MeasuredLadder) -> list[str]:
    """The table: a rung, its throughput, its ratios to the first and to the rung before, its step over the floor."""
    names = [f"{rung.name} {title}" for rung, title in zip(found.rungs, found.titles, strict=True)]
    to_first = ["", *(times.shown(2) for times in found.speedups[1:])]
    told = ["", *(f"{gain}, {gain.verdict_over(found.conditions.rounds)}" for gain in found.gains)]
    over = [f"{1 / share:.3g}" for share in found.shares_of_floor]
    tokens_per_second = [f"{rung.throughput.value:,.0f}" for rung in found.rungs]
    heads = "rung", "tokens/s", "ratio to the first", "ratio to the rung before", "times the floor"
    table = [heads, *zip(names, tokens_per_second, to_first, told, over, strict=True)]
    sizes = [f"{side}{max(map(len, column))}" for side, column in zip("<><<>", zip(*table, strict=True), strict=True)]
    lines = ["  ".join(f"{cell:{size}}" for cell, size in zip(row, sizes, strict=True)) for row in table]
    tokens = "same tokens on every rung" if found.conditions.same_tokens else "some tokens differ (rounding)"
    return [*lines, f"N: {found.conditions.tokens} tokens a run, {tokens}", f"On: {found.provenance}"]


def draw(ladders: Sequence[MeasuredLadder]) -> bytes:
    """A PNG: for each workload the throughput of all rungs."""
    heights = [HEAD_INCHES + ROW_INCHES * len(ladder.rungs) for ladder in ladders]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    axes = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    for ax, ladder in zip(axes.flat, ladders, strict=True):
        title = f"Workload {ladder.task.name}: {ladder.conditions.work}"
        ladder_throughput(ax, ladder, title, ladder.shares_of_floor)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=144)
    return content.getvalue()


def run(args: argparse.Namespace) -> None:
    """Check all that was asked for, measure one workload after another, and write what is to be written."""
    require_writable_json(args.json)
    require_writable_file(args.picture, "--picture")
    png = args.picture is None or args.picture.suffix == ".png"
    require(png, f"--picture {args.picture} is no PNG: give a name that ends in .png")
    require_counts(args, LEASTS)
    rungs = rungs_of(args)
    workloads_of(args, KNOWN)
    args.prompt = text_of(args.prompt)
    name_the_model(args)
    model = model_of(args)
    told = argparse.Namespace(**{name: value for name, value in vars(args).items() if name not in UNTOLD})
    command = command_line(make_parser(), told)
    tasks = tasks_of(told, model, rungs, command)
    require_room(tasks, model.shape.context)
    bandwidth = copy_bandwidth(model.device)
    ladders = [climbed(model, task, args.rounds, bandwidth) for task in tasks]
    if args.picture is not None:
        write_whole(args.picture, draw(ladders))
    head = {"command": command, **provenance(), "units": UNITS, "definitions": DEFINITIONS}
    write_json(args.json, head | {"workloads": {ladder.task.name: ladder.document for ladder in ladders}})
