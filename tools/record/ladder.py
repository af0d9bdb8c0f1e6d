"""Measure rungs of the ladder here, in turns, and print a table.

    PYTHONPATH=. python tools/record/ladder.py --workloads A,C-one --lessons 035,061,071 --picture ladder.png
    PYTHONPATH=. python tools/record/ladder.py --workloads C-one --model smollm2-135m --out data/families.csv

All rungs write the same tokens. Workloads have the articles' sizes on a GPU, a quarter of each on a CPU. The first rung
runs twice in each round, as the control.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import click
import pandas as pd
import torch
from matplotlib.figure import Figure
from tasks import PROMPT, task_of

import rosecourse as rc
from rosecourse.lessons import LESSONS
from rosecourse.measure.compare import Ladder, compare_ladder
from rosecourse.measure.floor import bytes_per_run, copy_bandwidth, share_of_floor
from rosecourse.measure.provenance import device_name
from rosecourse.measure.stats import ratio
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.models.load import RANDOM_SHAPES, SHIPPED
from rosecourse.models.shape import Model
from rosecourse.pictures import plots
from rosecourse.records.runs import LOAD, WORKLOADS

NUMBERS = [rung.number for rung in LESSONS]
MEASURED = [name for name in WORKLOADS if name != LOAD]  # whose rate follows from a recording


def chosen(kind: list[str], text: str, flag: str) -> list[str]:
    """The names in a list with commas. Raises click's error for one that is not known."""
    names = text.split(",")
    for name in names:
        if name not in kind:
            raise click.BadParameter(f"there is no {name!r}: give some of {', '.join(kind)}", param_hint=flag)
    return [name for name in kind if name in names]


def chosen_model(name: str) -> Model:
    """A shipped model, or one of random weights, a Llama in bfloat16 on a GPU."""
    if name in SHIPPED:
        return rc.load_model(name)
    half = "float16" if isinstance(RANDOM_SHAPES[name], GPT2Shape) else "bfloat16"
    return rc.random_model(name, dtype=half if torch.cuda.is_available() else "float32")


def told(ladder: Ladder, shares: list[float]) -> str:
    """The table: a rung, its throughput, its ratios to the first and to the rung before, its step over the floor."""
    table = ladder.table()
    gains = [ratio(*both) for both in pairwise(rung.each("total time") for rung in ladder.rungs)]
    table["ratio to the rung before"] = ["", *map(str, gains)]
    table["times the floor"] = [round(1 / share, 2) for share in shares]
    return f"{table.round(2).to_string()}\nThe first again: {ladder.speedups[0].control}\n{ladder.provenance}"


def rows(ladder: Ladder, shares: list[float], known: dict[str, object]) -> pd.DataFrame:
    """A row for each rung: tokens a second, the median, the lowest and the highest run, and the share of the floor."""
    found = []
    for rung, share in zip(ladder.rungs, shares, strict=True):
        rates = sorted(rung.throughputs)
        low, middle, high = (round(value) for value in (rates[0], median(rates), rates[-1]))
        figures = {"tokens/s": middle, "lowest": low, "highest": high, "share of the floor, %": round(100 * share, 1)}
        found.append(known | {"lesson": rung.name, "rounds": len(rates)} | figures)
    return pd.DataFrame(found)


@click.command(help=__doc__)
@click.option("--workloads", default="A,C-one", help=f"Of {', '.join(MEASURED)}; the prompt is {PROMPT!r}.")
@click.option("--lessons", default=",".join(NUMBERS), help="Two or more.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Rounds that count, after one that warms up.")
@click.option("--model", "name", type=click.Choice([*RANDOM_SHAPES, *SHIPPED]), help="gpt2 on a GPU, else tiny-gpt2.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="A CSV that grows.")
@click.option("--picture", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="A PNG.")
def main(workloads: str, lessons: str, rounds: int, name: str | None, out: Path | None, picture: Path | None) -> None:
    names, numbers = chosen(MEASURED, workloads, "--workloads"), chosen(NUMBERS, lessons, "--lessons")
    model = chosen_model(name or ("gpt2" if torch.cuda.is_available() else "tiny-gpt2"))
    known = {"gpu": device_name(model.device), "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat()}
    bandwidth, rungs = copy_bandwidth(model.device), [rc.lesson(number) for number in numbers]
    figure = Figure(figsize=(11, len(names) * (1.6 + 0.3 * len(rungs))), layout="constrained")
    for work, ax in zip(names, figure.subplots(len(names), 1, squeeze=False).flat, strict=True):
        task = task_of(work, model)
        ladder = compare_ladder(model, task.workload, rounds, task.config, rungs, task.runner, rungs[0])
        size = bytes_per_run(model, task.workload, ladder.rungs[0].runs[0])  # the same work on every rung
        shares = [share_of_floor(size, rung.typical("decode time"), bandwidth) for rung in ladder.rungs]
        print(f"=== {work}\n{told(ladder, shares)}", flush=True)
        if out is not None:
            found = rows(ladder, shares, {"model": model.name.removeprefix("random "), "workload": work})
            found.assign(**known).to_csv(out, mode="a", header=not out.exists(), index=False)
        plots.ladder_throughput(ax, ladder, f"Workload {work}: {ladder.conditions.work}", shares)
    if picture is not None:
        figure.savefig(picture, format="png", dpi=144)


if __name__ == "__main__":
    main()
