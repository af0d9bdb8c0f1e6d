"""Recording decode steps: in which order, what is counted, and when there is no time."""

import re
from itertools import pairwise

import pytest
import torch

from rosecourse.errors import LessonError
from rosecourse.measure.floor import kv_bytes_per_position, weight_bytes
from rosecourse.measure.timeline import STEP, STEP_KINDS, Kernel, Range, Timeline
from rosecourse.records import recorder, step_recorder
from rosecourse.records.steps import recorded_steps, steps_of
from rosecourse.records.timelines import recorded_timelines
from tests.support.commands import record
from tests.support.record_command import RUNGS, SMALL, rung_of, spy, written

pytestmark = pytest.mark.usefixtures("source", "few_steps")
COUNTED = 16


@pytest.fixture
def few_steps(monkeypatch):
    """A quarter of what is recorded, for all rungs and workloads."""
    monkeypatch.setattr(step_recorder, "TURNS", COUNTED // step_recorder.CHUNK)
    monkeypatch.setattr(step_recorder, "COUNTED", COUNTED)


def test_the_steps_of_all_rungs_come_after_all_runs_and_are_timed_before_the_first_timeline(
    tmp_path, monkeypatch, capsys, model
):
    order = spy(monkeypatch)
    times, take = step_recorder.decode_anatomies, step_recorder.take_timeline

    def timed(engines, sessions, *rest, **more):
        order.append("times")
        assert list(engines) == RUNGS
        assert all(len(mine) == 2 for mine in sessions.values())
        assert more == {"wait": False}
        return times(engines, sessions, *rest, **more)

    def taken(engine, sessions, step):
        order.append((rung_of(engine), step))
        turn = order.count(order[-1]) - 1
        length = 1e9 if order[-1][0] == "038" else [2000.0, 1800.0, 1900.0][turn % 3]
        made = Timeline((Range(STEP, 0.0, length),), (), "CPU", 1500.0, step, sessions[0].num_cached_tokens)
        return take(engine, sessions, step) if order[-1][0] == "038" and order.count(order[-1]) == 1 else made

    monkeypatch.setattr(step_recorder, "decode_anatomies", timed)
    monkeypatch.setattr(step_recorder, "take_timeline", taken)
    argv = ["--workloads", "steps,A", *SMALL, "--num-requests", "2", "--max-new-tokens", "26", "--out", str(tmp_path)]
    assert record.main(argv) == 0
    runs = [*RUNGS, *RUNGS[::-1]] * 3
    turns = [*RUNGS, *RUNGS[::-1], *RUNGS]
    timelines = [(number, kind) for _ in "ABCEF" for number in turns for kind in STEP_KINDS]
    assert order == [*runs, *["times"] * 5, *timelines]
    assert sorted(written(tmp_path)) == [
        f"cpu/{name}.json" for name in ("A", "A.steps", "B.steps", "C.steps", "E.steps", "F.steps")
    ]
    found = recorded_steps("A", folder=tmp_path)
    assert list(found.titles) == RUNGS
    assert (found.batch, found.context) == (2, 13)  # half of the completions
    assert all(len(seconds) == COUNTED for parts in found.times.seconds.values() for seconds in parts.values())
    shape, dtype = model.shape, torch.float32
    moved = weight_bytes(shape, dtype) + 2 * 13 * kv_bytes_per_position(shape, dtype)
    assert found.floor_ms == pytest.approx(1e3 * moved / 1e10)
    boundary = steps_of("A", folder=tmp_path).timelines["038"]["boundary"]  # taken indeed
    assert boundary.context == 128
    assert 0 < boundary.part_us("kv_append") < boundary.step_us
    assert {one.step_us for one in steps_of("A", folder=tmp_path).timelines["061"].values()} == {1800}  # the shortest
    logits = steps_of("A", folder=tmp_path).logits
    assert set(logits) == {(RUNGS[0], one) for one in RUNGS[1:]} | set(pairwise(RUNGS))
    assert {(one.steps, one.rows, one.other_choices) for one in logits.values()} == {(COUNTED, 2 * COUNTED, 0)}
    said = capsys.readouterr().out.splitlines()
    assert said[len(RUNGS) + 1] == f"A.steps: 2 sessions of 13 tokens, floor {found.floor_ms:.2f} ms"
    assert re.fullmatch(
        r"  035 paged decode baseline: [\d.]+ ms a step, device busy 0.00 ms in 0 kernels", said[len(RUNGS) + 2]
    )
    order.clear()
    assert record.main(argv) == 0
    assert order == []
    assert capsys.readouterr().out.count("is there, of this commit and settings") == 6


def test_what_is_counted_says_which_lessons_change_which_kind_of_step(tmp_path, monkeypatch):
    """On a CPU, with two sessions: 059 changes only the boundary, and Triton's kernel is not for so small a batch."""

    def taken(engine, sessions, step):
        return Timeline((Range(STEP, 0.0, 2000.0),), (), "CPU", 1500.0, step, 64)

    monkeypatch.setattr(step_recorder, "take_timeline", taken)
    assert record.main(["--workloads", "steps", *SMALL, "--out", str(tmp_path)]) == 0
    layers = 6
    found = steps_of("B", folder=tmp_path)
    calls = {kind: [found.counts[number][kind]["append_token calls"] for number in RUNGS] for kind in STEP_KINDS}
    assert calls == {
        "inside": [2 * layers] * 2 + [0] * 14,
        "boundary": [2 * layers] * 3 + [0] * 13,
        "fork": [2 * layers] * 6 + [0] * 10,  # one session copies, the other has the block to itself
    }
    copies = [found.counts[number]["fork"]["copy"] for number in ("064", "065")]
    assert copies[0] - copies[1] == 2  # K and V of the one copy
    assert [found.counts[number]["inside"]["bytes handed to the device"] for number in RUNGS[-3:]] == [0, 0, 0]
    for number in RUNGS[1:]:
        if number not in ("061", "068", "069", "070", "071"):  # for so small a batch, for no step, and for no CPU
            assert list(recorded_timelines(number, folder=tmp_path)) == ["before", "after"]
        else:
            with pytest.raises(LessonError, match=f"lesson {number} runs the same code"):
                recorded_timelines(number, folder=tmp_path)


def test_steps_are_not_begun_when_the_time_is_over(tmp_path, monkeypatch, capsys, clock):
    def late(run, number):
        clock(run, number)
        if number == 6 * len(RUNGS):  # the last run of all
            monkeypatch.setattr(recorder.Deadline, "fits", lambda self, seconds: False)

    spy(monkeypatch, late)
    argv = ["--workloads", "A,steps", *SMALL, "--minutes", "99", "--out", str(tmp_path)]
    assert record.main(argv) == 0
    assert list(written(tmp_path)) == ["cpu/A.json"]
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "steps: no time is left for them"
    assert said[-1].startswith("To go on: rosecourse record ")


def test_a_window_that_a_step_can_be_put_together_from_is_kept_before_a_shorter_one():
    def window(length, *kernels):
        made = tuple(Kernel(*kernel) for kernel in kernels)
        return Timeline((Range(STEP, 0.0, length),), made, "a GPU", 60.0, "inside", 9)

    attention = [("attend", "attention", at, 5.0) for at in (0, 10, 30)]
    border = ("_to_host_kernel", "other", 20, 1.0)
    without, with_border = window(40.0, *attention), window(50.0, *attention[:2], border, attention[2])
    longer = window(60.0, *attention[:2], border, attention[2])
    assert step_recorder._shortest([longer, without, with_border], layers=4) == with_border.document()
    assert step_recorder._shortest([longer, without, with_border], layers=3) == without.document(), "it has all layers"
    assert step_recorder._shortest([without], layers=4) == without.document()
