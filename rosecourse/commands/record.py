"""rosecourse record: all rungs of the ladder under one workload after another, written to data/results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..checks import require
from ..records.json_file import require_writable_folder
from .late import assignments, engines, provenance, record_session, recorder, results, step_recorder, tasks, workloads
from .options import (
    ARTICLES,
    LESSONS,
    MIXED,
    Flags,
    Number,
    Some,
    articles_options,
    command,
    command_line,
    count,
)

if TYPE_CHECKING:
    from ..models.shape import Model
    from ..records.session import Session

STEPS = "steps"
WORKLOADS = (*ARTICLES, MIXED, STEPS)
FIRSTS = click.Choice(LESSONS[1:-1])  # a part of the ladder has a rung before it and one after its first


def writable_folder(context: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        require_writable_folder(path)
    return path


def commit_of(context: click.Context, param: click.Parameter, commit: str | None) -> str | None:
    known = commit is None or re.fullmatch("[0-9a-f]{7,40}(-dirty)?", commit)
    require(bool(known), f"commit is {commit!r}: give 7 to 40 digits of `git rev-parse HEAD`, and -dirty if it is")
    return commit


@command
@click.option("--workloads", type=Some(WORKLOADS), default=",".join(WORKLOADS), metavar="X,Y", help="In this order.")
@click.option("--from", type=FIRSTS, metavar="NNN", help="The first rung, into files of their own. Default: all rungs.")
@click.option("--rounds", type=count(5), default=7, help="Rounds that count, after one that warms up, or two for D.")
@click.option("--minutes", type=Number(0, min_open=True), help="Begin no round that would end later; call again.")
@click.option("--out", type=Path, callback=writable_folder, help="The folder. Default: data/results.")
@click.option("--force", is_flag=True, help="Record anew what is there for this commit and settings.")
@click.option("--commit", callback=commit_of, help="The source's commit where there is no git; with -dirty if changed.")
@articles_options
def record(flags: Flags) -> None:
    """Record every rung under each workload.

    Rounds run all rungs in turn; the steps come last. Default sizes: the articles'; D has lengths of its own.
    """
    told = "--minutes goes on with what is there and --force begins anew: give one of them"
    require(flags.minutes is None or not flags.force, told)
    deadline = recorder.Deadline(flags.minutes)
    flags = engines.of_the_articles(flags)
    if not session_of(flags, engines.model_of(flags), deadline).record():
        click.echo(f"To go on: {command_line(vars(flags))}")


def session_of(flags: Flags, model: Model, deadline: Any) -> Session:
    """What is to be recorded, once all of it has been checked."""
    names, first, context = flags.workloads.split(","), vars(flags)["from"], model.shape.context
    traffic = tasks.traffic_of(model, flags)

    def task_of(name: str, workload: str) -> Any:
        order = tasks.order_of(flags.but(workloads=workload), model, first)
        if name == MIXED:
            return assignments.burst_assignment(traffic, model.shape.vocab_size, order)
        return assignments.article_assignment(tasks.article_of(name, flags), order)

    firsts = [task_of(name, name) for name in names if name != STEPS]
    alike = [task_of(name, STEPS) for name in workloads.WITH_STEPS if STEPS in names]
    tasks.require_room([*firsts, *alike], context)
    steps = [step_recorder.StepsTask.of(task) for task in alike]
    longest = max((task.least for task in steps), default=0)
    told = f"the steps take sessions of {longest} tokens, which do not fit into the model's {context}"
    require(longest <= context, f"{told}: give fewer --max-new-tokens, or leave steps out")
    made = recorder.Recorder(model, source_of(flags), flags.out or results.RESULTS)
    return record_session.Session(made, firsts, traffic, steps, flags.rounds, deadline, flags.force)


def source_of(flags: Flags) -> dict[str, Any]:
    """Commit and dirty flag: git's, or where there is no git those that `--commit` states."""
    found = provenance.provenance()
    here, dirty = found["commit"], found["dirty"]
    if flags.commit is None:
        return {"commit": here, "dirty": dirty}
    commit = flags.commit.removesuffix("-dirty")
    require(here is None or here.startswith(commit), f"commit is {commit}, but git says {here}: leave --commit out")
    return {"commit": here or commit, "dirty": dirty if here else flags.commit.endswith("-dirty")}
