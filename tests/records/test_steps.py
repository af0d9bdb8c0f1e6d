"""Recorded steps: two tables and their provenance, and which timelines are of a lesson."""

import json

import pandas as pd
import pytest

from rosecourse import LESSONS, ConfigError, LessonError
from rosecourse.lessons.workloads import name_of_steps
from rosecourse.measure.timeline import HOST, STEP
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.records.steps import FACTS, KERNELS, PARTS, recorded_steps, recorded_timelines

RUNGS = {"035": 3, "036": 2, "038": 1}  # milliseconds of each part


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    parts = [("A", n, turn, part, ms) for n, ms in RUNGS.items() for turn in (0, 1) for part in ("plan", "rest")]
    columns = ["workload", "lesson", "repetition", "part", "ms"]
    pd.DataFrame(parts, columns=columns).to_csv(folder / PARTS, index=False)
    events = [
        ("A", number, "inside", *event)
        for number in ("035", "036")
        for event in ((STEP, HOST, 0.0, 2000.0), ("a_kernel", "other", 5.0, 100.0 * int(number[-1])))
    ]
    columns = ["workload", "lesson", "step", "name", "kind", "start_us", "us"]
    pd.DataFrame(events, columns=columns).to_csv(folder / KERNELS, index=False)
    seen = {"inside": {"context": 256, "plain_us": 1500.0, "busy_us": 200.0, "kernels": 3}}
    work = {"batch": 64, "context": 256, "step_bytes": 10**9, "profiled": dict.fromkeys(RUNGS, seen)}
    facts = {"host": {"gpu": "NVIDIA H200"}, "settings": {"dtype": "float16"}, "copy_bytes_per_second": 4e12}
    (folder / FACTS).write_text(json.dumps(facts | {"workloads": {"A": work}}))
    return tmp_path


def test_steps_of_a_ladder_have_parts_floor_and_device_time(results):
    found = recorded_steps("A", folder=results)
    assert found.times.milliseconds("035") == pytest.approx({"plan": 3.0, "rest": 3.0})
    assert [found.times.step_ms(number) for number in found.titles] == pytest.approx([6, 4, 2])
    assert found.floor_ms == pytest.approx(0.25)  # 1 GB at 4 TB/s
    assert (found.busy_ms, found.kernels) == (dict.fromkeys(RUNGS, 0.2), dict.fromkeys(RUNGS, 3))
    assert (found.batch, found.context, found.device) == (64, 256, "NVIDIA H200")
    assert found.titles["036"] == "block-table cache"
    assert list(found.between("035", "038").turns) == ["before", "after"]


def test_the_floor_of_a_step_is_that_of_its_own_context(results):
    found, shape = recorded_steps("A", folder=results), GPT2Shape(97, 1024, 8, 2, 2)
    step = found.timeline("035")
    assert found.floor_us(step, shape) == pytest.approx(1e3 * found.floor_ms)
    found.work["context"] += 10  # of 64 sessions; K and V of 8 numbers, 2 layers, 2 bytes each
    assert 1e3 * found.floor_ms - found.floor_us(step, shape) == pytest.approx(1e6 * 64 * 10 * 64 / 4e12)


def test_timelines_of_a_lesson_are_of_two_rungs(results):
    found = recorded_timelines("036", folder=results)
    assert [(name, one.kernels.us.tolist()) for name, one in found.items()] == [("before", [500.0]), ("after", [600.0])]
    assert (found["after"].plain_us, found["after"].step_us, found["after"].context) == (1500, 2000, 256)
    assert list(recorded_timelines("035", folder=results)) == ["after"]


def test_steps_that_are_not_recorded_are_told(results, tmp_path):
    assert recorded_steps("B", folder=results) is None
    assert recorded_steps("A", folder=results).timeline("038") is None
    assert recorded_timelines("036", folder=tmp_path / "none") is None
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        recorded_timelines("042", folder=results)
    with pytest.raises(ConfigError, match="there is no record of the steps of"):
        recorded_steps("../A", folder=results)


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_every_lesson_has_its_recorded_timelines(rung):
    found = recorded_timelines(rung.number)
    assert list(found) == (["before", "after"] if rung is not LESSONS[0] else ["after"])
    steps = recorded_steps(name_of_steps(rung.workload))
    for one in found.values():
        assert one.step_kind == rung.step_kind
        assert one.events.start_us.is_monotonic_increasing
    facts = steps.work["profiled"][rung.number][rung.step_kind]
    assert facts["kernels"] == len(found["after"].kernels)
    assert facts["busy_us"] == pytest.approx(found["after"].busy_us, abs=0.1)
