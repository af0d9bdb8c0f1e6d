"""Maintainers' recorder: rounds are measured, kept, gone on with, and read back by the pages."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from rosecourse.records.results import RESULTS, SHIPPED_GPU
from rosecourse.records.runs import COLUMNS, recorded_comparison
from tests.support.recordings import STEPS, steady, write_recording
from tests.support.timelines import timeline_of

TOOLS = Path(__file__).parents[2] / "tools" / "record"


@pytest.fixture
def record(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import runs as module  # noqa: PLC0415
    import tasks  # noqa: PLC0415

    monkeypatch.setitem(tasks.FIRST, "E", "070")  # two rungs, of which the last one runs twice
    yield module
    for name in ("runs", "tasks", "paths", "ladder", "steps", "cores"):
        sys.modules.pop(name, None)


def run(command, *arguments):
    done = CliRunner().invoke(command, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_recorded_rounds_are_read_back_as_a_comparison(record, tmp_path):
    """Two rounds are measured first; a later call adds the third, and the pages read all of them."""
    parts, out = tmp_path / "parts", tmp_path / "results"
    run(record.main, "measure", "--workloads", "E", "--rounds", 2, "--out", parts)
    run(record.main, "measure", "--workloads", "E", "--rounds", 3, "--out", parts)
    run(record.main, "gather", parts, "--out", out)
    found = recorded_comparison("071", "E", folder=out)
    assert (found.pairs, found.conditions.rounds, found.conditions.same_tokens) == (3, 3, True)
    assert found.speedup.control is not None
    assert len(found.after.itl_along_steps_ms) == 15  # a quarter of 64 tokens
    assert 0 < found.share_of_floor("after") < 10
    rows = found.recording.by_number["071"].rows
    assert list(rows["round"]) == [1, 2, 3]
    assert (rows["total throughput"] > 0).all()


def test_the_path_of_each_lesson_ran_where_it_is_recorded(record):
    """In the committed recording; a run in which the next lesson's path does not run is told."""
    told = json.loads((RESULTS / SHIPPED_GPU / "runs.json").read_text())
    paths = {workload: one["paths"] for workload, one in told.items()}
    assert [record.trouble(*one) for one in paths.items()] == [[]] * len(paths)
    shut = paths["C-scheduler"] | {"061": paths["C-scheduler"]["060"]}
    assert record.trouble("C-scheduler", shut) == [
        "061 under C-scheduler: index_put is 24 a step, 24 before",
        "061 under C-scheduler: a kernel in 0% of the steps",
    ]


def test_a_stalled_round_is_left_out_and_measured_again(record, tmp_path):
    slow = [steady(step * (3 if number == 2 else 1)) for number, step in enumerate(STEPS)]
    rows = pd.read_csv(write_recording(tmp_path, {"070": slow}, "E"), dtype={"lesson": str})
    part = record.Part(tmp_path, "E")
    part.about = {"rounds measured again": 0}
    part.add(rows[COLUMNS].to_dict("records"), [pd.DataFrame({"lesson": ["070"] * 5, "round": range(1, 6)})])
    assert part.stalled() == [3]
    part.drop(3)
    assert (part.done, part.stalled(), part.about["rounds measured again"]) == (4, [], 1)


def test_a_ladder_of_two_rungs_is_measured_and_drawn(record, tmp_path):
    import ladder  # noqa: PLC0415

    picture = tmp_path / "ladder.png"
    told = run(ladder.main, "--workloads", "E", "--lessons", "070,071", "--rounds", 1, "--picture", picture)
    assert "ratio to the rung before" in told
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = CliRunner().invoke(ladder.main, ["--lessons", "071,099"])
    assert refused.exit_code == 2
    assert "there is no '099'" in refused.output


def test_a_load_follows_from_the_burst_that_was_recorded(record, model):
    task = record.task_of("D-load", model, pd.Series([2.0, 4.0, 3.0]))
    assert len(task.workload.requests) / task.workload.requests[-1].arrival < len(task.workload.requests) / 3.0


@pytest.mark.parametrize(
    ("order", "us"),
    [("aqakqa", 50.0), ("aqaqa", float("inf")), ("akqa", float("inf"))],  # attention, products, the copy of the tokens
)
def test_a_window_without_a_border_or_a_whole_layer_is_cut(record, order, us):
    import steps  # noqa: PLC0415

    kinds = {"a": "attention", "q": "matrix", "k": "copy"}
    window = timeline_of([(kinds[one], kinds[one], 10.0 * n, 8.0) for n, one in enumerate(order)])
    assert steps.device_us(window, 2, replays=True) == us
