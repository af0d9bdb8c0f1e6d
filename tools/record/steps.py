"""Record the decode steps of all rungs on this machine: the files of `rosecourse.records.steps`.

A profiler can slow a process down for good, because CUPTI stays attached: all that is timed, of all workloads, comes
before the first timeline. The steps are in the middle of a workload's requests, which are all alike.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise, product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import click
import pandas as pd
import torch
from cores import settle
from tasks import gpu_folder
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from rosecourse import EngineConfig, InferenceEngine, InferenceSession, SamplingParams, load_model, random_model
from rosecourse.errors import ConfigError, RosecourseError
from rosecourse.lessons import LESSONS, Lesson
from rosecourse.lessons.workloads import WITH_STEPS, ArticleWorkload, name_of_steps
from rosecourse.measure.anatomy import CHUNK, decode_anatomies, finish, one_step
from rosecourse.measure.floor import copy_bandwidth, kv_bytes_per_position, weight_bytes
from rosecourse.measure.profiling import events_of, seen_by
from rosecourse.measure.provenance import provenance
from rosecourse.measure.timeline import STEP, STEP_KINDS, Timeline, replayed_step
from rosecourse.models.shape import Model
from rosecourse.records.results import RESULTS
from rosecourse.records.steps import FACTS, KERNELS, PARTS

TURNS = 16  # of `CHUNK` steps each: together one block of 64 tokens
COUNTED = TURNS * CHUNK
ROUNDS = 2  # timelines of a step, of which the shortest is kept
TAKES = 6  # of them at most, while each is cut, or takes `SLOW` times as long as a step without the profiler
SLOW = 1.15
WARMUP = 20  # steps before the profiler starts
# The profiler watches and forgets its first steps, which are slow. One more comes before the step that is shown: of
# what was launched before the profiler began it sees no kernels.
BEFORE_SHOWN = 4
BLOCK = EngineConfig().block_size


def started(
    model: Model, work: ArticleWorkload, rung: Lesson, length: int
) -> tuple[InferenceEngine, list[InferenceSession]]:
    """An engine of a rung, and sessions that are all alike: prefilled, and as long as the engine takes them."""
    room = length + 1 + max(CHUNK + COUNTED, 2 * BLOCK)
    config = EngineConfig(max_batch_size=work.max_batch_size, prefix_cache=False, max_seq_len=room)
    engine = InferenceEngine(model, config, rung.after)
    prompt = [15496 % model.shape.vocab_size] * length  # "Hello" in GPT-2's vocabulary
    params = SamplingParams(max_new_tokens=engine.max_seq_len - length, stop_on_eos=False)
    sessions = [engine.new_session(prompt, params) for _ in range(work.max_batch_size)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return engine, sessions


def timed(model: Model, work: ArticleWorkload, rungs: Sequence[Lesson]) -> tuple[list[tuple], dict[str, Any]]:
    """Rows of `PARTS`, and the workload's facts. The rungs take turns; the first turn warms up."""
    settle()
    length = max(1, work.max_new_tokens // 2 - COUNTED // 2 - CHUNK)
    each = {rung.number: started(model, work, rung, length) for rung in rungs}
    engines = {number: engine for number, (engine, _) in each.items()}
    times = decode_anatomies(engines, {n: sessions for n, (_, sessions) in each.items()}, TURNS, wait=False)
    rows = [
        (work.name, number, turn, part, round(milliseconds, 4))
        for number, turns in times.turns.items()
        for part in turns
        for turn, milliseconds in enumerate(turns[part])
    ]
    context = length + CHUNK + COUNTED // 2
    moved = work.max_batch_size * context * kv_bytes_per_position(model.shape, model.dtype)
    moved += weight_bytes(model.shape, model.dtype)
    return rows, {"batch": work.max_batch_size, "context": context, "step_bytes": moved}


def step_of(engine: InferenceEngine, sessions: list[InferenceSession], kind: str, name: str = "warm-up") -> float:
    """The seconds of one step, as it is in a run: from lesson 067 on it ends with the tokens of the one before.

    Right after a fork nothing is in flight, because forks drain the pipeline; such a step ends with its own tokens.
    """
    if kind == "fork":
        for session in sessions[1:]:
            engine.free(session)
        sessions[1:] = [engine.fork(sessions[0]) for _ in sessions[1:]]
    with record_function(name):
        start = time.perf_counter()
        one_step(engine, sessions)
        if kind == "fork":
            finish(engine, sessions)
        return time.perf_counter() - start


def timeline_of(model: Model, work: ArticleWorkload, rung: Lesson, kind: str) -> Timeline:
    """The timeline of the first step of a kind, a key of `STEP_KINDS`, for which engine and profiler are warm."""
    length = max(1, work.max_new_tokens // 2 - (BLOCK + 1 if kind == "boundary" else COUNTED // 2 + CHUNK))
    engine, sessions = started(model, work, rung, length)
    places = [(length + n) % BLOCK for n in range(engine.max_seq_len - length)]
    fits = [n for n, place in enumerate(places) if (place == 0 if kind == "boundary" else place > 1)]
    shown = next(n for n in fits if n >= max(WARMUP, fits[0] + 1) + BEFORE_SHOWN)
    seconds = [step_of(engine, sessions, kind) for _ in range(shown - BEFORE_SHOWN)]
    plain_us = 1e6 * median([seconds[n] for n in fits if n < len(seconds)][-WARMUP // 2 :])
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    plan = schedule(wait=0, warmup=BEFORE_SHOWN - 1, active=2, repeat=1)
    with profile(activities=activities, schedule=plan, acc_events=True) as profiler:
        for number in range(BEFORE_SHOWN + 1):
            step_of(engine, sessions, kind, STEP if number == BEFORE_SHOWN else "rosecourse.step_before")
            profiler.step()
    finish(engine, sessions)
    timeline = Timeline(events_of(seen_by(profiler)), "", round(plain_us, 1), kind, length + shown)
    if torch.cuda.is_available() and timeline.kernels.empty:
        raise RosecourseError("the profiler saw no kernels: end other profilers on this GPU, and record once more")
    return timeline


def device_us(timeline: Timeline, layers: int, replays: bool) -> float:
    """Microseconds of the step in a window; infinite if it lacks a layer, or as one of replays the border of two."""
    if not replays:
        return timeline.step_us if (timeline.kernels.kind == "attention").sum() >= layers else inf
    try:
        return replayed_step(timeline, layers).step_us
    except ConfigError:
        return inf


def replays(number: str, kind: str) -> bool:
    """Whether the device of a lesson is one step behind, so that a window begins somewhere in a replay."""
    return number >= "067" and kind == "inside"


def shortest_timeline(model: Model, work: ArticleWorkload, rung: Lesson, kind: str, rounds: int) -> Timeline:
    """The shortest of `rounds` timelines, or of up to `TAKES` where all are cut or far longer than a plain step.

    What else the machine and the profiler did has only made the others longer.
    """
    replayed = replays(rung.number, kind)
    us_of = partial(device_us, layers=model.shape.num_layers, replays=replayed)
    slow = SLOW if replayed else inf  # where the host launches each kernel, the profiler slows it down in any case
    found: list[Timeline] = []
    while len(found) < rounds or (len(found) < TAKES and us_of(found[0]) >= slow * found[0].plain_us):
        found = sorted([*found, timeline_of(model, work, rung, kind)], key=us_of)
    return found[0]


def profiled(
    model: Model, work: ArticleWorkload, rungs: Sequence[Lesson], rounds: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of `KERNELS`, and facts of each rung and kind of step.

    Events are kept of all rungs under A, of those that replay (067 on), and of a lesson's own step before and after it.
    """
    own = {("A", rung.number, "inside") for rung in LESSONS}
    for before, rung in pairwise(LESSONS):
        own |= {(name_of_steps(rung.workload), one.number, rung.step_kind) for one in (before, rung)}
    wanted = [(r, k) for r, k in product(rungs, STEP_KINDS) if k == "inside" or (work.name, r.number, k) in own]
    settle()
    tables, facts = [], dict[str, Any]()
    for rung, kind in wanted:
        number, one = rung.number, shortest_timeline(model, work, rung, kind, rounds)
        sizes = {"busy_us": round(one.busy_us, 1), "kernels": len(one.kernels)}
        facts.setdefault(number, {})[kind] = {"context": one.context, "plain_us": one.plain_us} | sizes
        if number >= "067" or (work.name, number, kind) in own:
            tables.append(one.events.assign(workload=work.name, lesson=number, step=kind))
    return pd.concat(tables), facts


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--workloads", default=",".join(WITH_STEPS), help="Of these, in this order.", show_default=True)
@click.option("--out", type=Path, default=RESULTS, help="The folder of all GPUs' folders.", show_default=True)
@click.option("--tiny", is_flag=True, help="A trial on a CPU: a small model, a few rungs, a quarter of the sizes.")
def main(workloads: str, out: Path, tiny: bool) -> None:
    model = load_model(device="cpu") if tiny else random_model("gpt2")
    rungs, rounds = ((*LESSONS[:2], *LESSONS[-2:]), 1) if tiny else (LESSONS, ROUNDS)
    works = [WITH_STEPS[name].a_quarter if tiny else WITH_STEPS[name] for name in workloads.split(",")]
    facts: dict[str, Any] = provenance() | {"copy_bytes_per_second": copy_bandwidth(model.device)}
    facts |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": shlex.join(["python", *sys.argv])}
    facts["settings"] = {"model": model.name, "dtype": str(model.dtype).removeprefix("torch."), "turns": TURNS}
    every = {work.name: timed(model, work, rungs) for work in works}
    traces = {work.name: profiled(model, work, rungs, rounds) for work in works}
    facts["workloads"] = {name: every[name][1] | {"profiled": traces[name][1]} for name in every}
    folder = out / gpu_folder(facts["host"]["gpu"] or facts["host"]["cpu"])
    folder.mkdir(parents=True, exist_ok=True)
    parts = pd.DataFrame([row for rows, _ in every.values() for row in rows])
    parts.to_csv(folder / PARTS, index=False, header=["workload", "lesson", "repetition", "part", "ms"])
    events, columns = pd.concat([one for one, _ in traces.values()]), ["workload", "lesson", "step", "name", "kind"]
    events.to_csv(folder / KERNELS, index=False, float_format="%.1f", columns=[*columns, "start_us", "us"])
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    click.echo(f"{folder}: {len(parts):,} rows of parts, {len(events):,} events")


if __name__ == "__main__":
    main()
