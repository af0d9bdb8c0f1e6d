"""The functions of a lesson's page: recorded figures in words, counts, and steps by hand."""

import pytest

from rosecourse import ConfigError, EngineConfig, lesson
from rosecourse.lab import counts, forecast, result, start, step
from rosecourse.records.runs import recorded_comparison
from rosecourse.records.steps import recorded_steps


def said_by(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("number", "workload"), [("038", None), ("061", "C-scheduler")])
def test_result_is_the_recorded_headline_and_its_command(number, workload, capsys):
    result(number, workload)
    found, said = recorded_comparison(number, workload), said_by(capsys)
    assert found.effect(*lesson(number).headline) in said
    assert f"`{found.recording.document['command']}`" in said


def test_what_is_not_recorded_is_refused():
    with pytest.raises(ConfigError, match=r"tools/record/runs\.py"):
        result("038", "D-burst")


def test_a_forecast_is_the_share_of_the_recorded_step(capsys):
    forecast("038")
    steps = recorded_steps("A").between("036", "038")
    share, said = steps.share("before", "kv_append"), said_by(capsys)
    assert f"A step before the lesson: {steps.step_ms('before'):.2f} ms" in said
    assert (
        f"{share:.0%}. Without this share a step would be 1 / (1 - {share:.3f}) = {1 / (1 - share):.2f} times" in said
    )


def test_a_forecast_leaves_the_kernels_that_a_lesson_keeps(capsys):
    forecast("066")
    steps = recorded_steps("A")
    assert f"= {steps.times.step_ms('065') / steps.busy_ms['065']:.2f} times as fast" in said_by(capsys)


def test_counts_are_of_a_step_inside_a_block_or_at_its_begin():
    inside, begins = counts("038"), counts("038", prompt_tokens=63)
    assert [one.calls_of("append_token") for one in (inside.before, inside.after)] == [96, 0]
    assert [one.calls_of("append_token") for one in (begins.before, begins.after)] == [96, 96]
    assert "append_token calls" in str(inside)
    assert "<table" in inside._repr_html_()


def test_started_sessions_get_one_token_more_in_each_step(small_model):
    _, engine = lesson("038").engines(small_model, EngineConfig(block_size=4, max_batch_size=4))
    sessions = start(engine, [[1, 2, 3], [4, 5, 6, 7, 8]], new_tokens=3)
    assert [len(one.completion_ids) for one in sessions] == [1, 1]
    step(engine, sessions)
    step(engine, sessions)
    assert [len(one.completion_ids) for one in sessions] == [3, 3]
    assert all(one.finished for one in sessions)
