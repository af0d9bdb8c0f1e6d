"""rosecourse benchmark_ladder: rungs of the ladder under some workloads, in turns, as a table and a picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

import rosecourse

from ..checks import require
from ..records.json_file import write_json
from ..records.whole_file import require_writable_file, write_whole
from .late import engines, floor, holding, measured, plots, tasks, tqdm, workload
from .options import (
    ARTICLES,
    LESSON_OR_BEST,
    LESSONS,
    MIXED,
    Flags,
    Some,
    articles_options,
    command,
    count,
    json_option,
)

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine
    from ..measure.workload import Run, Runner, Workload
    from ..models.shape import Model
    from ..records.assignments import Assignment
    from ..records.measured import MeasuredLadder


def writable_png(context: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    require_writable_file(path, "--picture")
    require(path is None or path.suffix == ".png", f"--picture {path} is no PNG: give a name that ends in .png")
    return path


@command
@click.option("--workloads", type=Some([*ARTICLES, MIXED]), default="A,C", metavar="X,Y", help="Which.")
@click.option("--lessons", type=Some(LESSON_OR_BEST.choices), metavar="NNN,MMM", help="Which rungs. Default: all.")
@click.option("--from", type=LESSON_OR_BEST, metavar="NNN", help="In place of --lessons: the first of them.")
@click.option("--to", type=LESSON_OR_BEST, metavar="NNN", help="In place of --lessons: the last of them.")
@click.option("--rounds", type=count(), default=5, help="Rounds that count, after one that warms up.")
@click.option("--picture", type=Path, metavar="FILE.png", callback=writable_png, help="Draw all throughputs there.")
@json_option
@articles_options
def benchmark_ladder(flags: Flags) -> None:
    """Measure rungs of the ladder in turns.

    All write the same tokens, in interleaved rounds. All of them under A and C take one to three minutes on a laptop,
    and about five on a large GPU. Default sizes: the articles' on a GPU, a quarter of each on a CPU.
    """
    numbers = numbers_of(flags)
    flags = engines.of_the_articles(flags)
    model = engines.model_of(flags)
    asked = tasks.on_this_device(flags, model, [rosecourse.lesson(number) for number in numbers])
    bandwidth = floor.copy_bandwidth(model.device)
    ladders = [climbed(model, task, flags.rounds, bandwidth) for task in asked]
    if flags.picture is not None:
        write_whole(flags.picture, plots.drawn_ladders(ladders))
    told = {"units": tasks.UNITS, "definitions": tasks.DEFINITIONS}
    write_json(flags.json, engines.head(flags) | told | {"workloads": {one.task.name: one.document for one in ladders}})


def numbers_of(flags: Flags) -> list[str]:
    """The rungs that the flags name, in the order of the ladder. Raises `ConfigError` for fewer than two."""
    first, last = vars(flags)["from"], flags.to
    require(flags.lessons is None or first is last is None, "--lessons names each rung: leave --from and --to out")
    if flags.lessons is None:
        chosen = [number for number in LESSONS if (first or "") <= number <= (last or "best")]
    else:
        chosen = [number for number in LESSONS if number in flags.lessons.replace("best", LESSONS[-1]).split(",")]
    told = f"{len(chosen)} rung{'s' * (len(chosen) != 1)}"
    require(len(chosen) > 1, f"a ladder of {told} has nothing to compare: name 2 or more")
    return chosen


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
            tqdm.tqdm.write(f"  warmed up; the rounds that count take about {seconds:,.0f} s")  # beside the bar
        return run


def climbed(model: Model, task: Assignment, rounds: int, bandwidth: float) -> MeasuredLadder:
    """Measure the rungs under one workload, and print what is done and what was found."""
    held = holding.holding_for(model, task.config, len(task.rungs))
    alone = held is holding.one_at_a_time
    print(heading(task, rounds, "; one engine at a time, as memory is short" if alone else ""), flush=True)
    forecast = Forecast(workload.RUNNERS[task.benchmark], len(task.rungs) * (2 if alone else 1), rounds)
    found = measured.MeasuredLadder.of(model, task, rounds, bandwidth, forecast, held)
    print("\n".join(found.lines), flush=True)
    return found


def heading(task: Assignment, rounds: int, held: str) -> str:
    """What is going to be measured, in a line."""
    requests, largest = len(task.workload.prompts), task.config.max_batch_size
    turns = f"{len(task.rungs)} rungs, {rounds} round{'s' * (rounds > 1)} after one that warms up"
    how = task.benchmark.removeprefix("benchmark_")
    return f"=== {task.name}: {requests} completions, batch {largest} ({how}); {turns}{held} ==="
