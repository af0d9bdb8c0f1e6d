"""The functions of a lesson's page: recorded figures in words, counts, steps by hand, and the live run."""

import pytest

from rosecourse import ConfigError, EngineConfig, LessonError, lesson
from rosecourse.lab import counts, exercise, forecast, result, start, step, your_run
from rosecourse.lab.exercises import own_run
from rosecourse.lab.exercises.own_run import LiveWork, differs_from_given
from rosecourse.pictures.plots import lesson_figure
from rosecourse.records.runs import recorded_comparison
from rosecourse.records.steps import recorded_steps
from tests.support.cells import exercise_of, part_in, solution_of

SMALL = LiveWork(requests=(2, 2), new_tokens=(4, 4), pairs=(2, 2))


class SwapsKAndV(lesson("038").after.kv_append):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, values, keys)


class Raises(lesson("038").after.kv_append):
    def __call__(self, sessions, keys, values):
        raise ValueError("not yet")


@pytest.fixture
def figures(monkeypatch):
    """The figures of live runs, which are of few tokens here."""
    drawn = []
    monkeypatch.setattr(own_run, "WORK", {"038": SMALL})
    monkeypatch.setattr(own_run, "lesson_figure", lambda one, *rest: drawn.append(one) or lesson_figure(one, *rest))
    return drawn


def said_by(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("number", "workload"), [("038", None), ("061", "C-scheduler")])
def test_a_result_is_the_recorded_headline_and_the_command_behind_it(number, workload, capsys):
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
    assert f"{share:.0%}. Without it a step would be 1 / (1 - {share:.2f}) = {1 / (1 - share):.2f} times" in said


def test_counts_are_of_a_step_inside_a_block_or_at_its_begin():
    inside, begins = counts("038"), counts("038", prompt_tokens=63)
    assert [one.calls_of("append_token") for one in (inside.before, inside.after)] == [96, 0]
    assert [one.calls_of("append_token") for one in (begins.before, begins.after)] == [96, 96]
    assert counts("038", part="forward").before.calls_of("append_token") == 0
    assert "append_token calls" in str(inside)
    assert "<table" in inside._repr_html_()


def test_started_sessions_have_one_token_and_each_step_gives_one_more(small_model):
    _, engine = lesson("038").engines(small_model, EngineConfig(block_size=4, max_batch_size=4))
    sessions = start(engine, [[1, 2, 3], [4, 5, 6, 7, 8]], new_tokens=3)
    assert [len(one.completion_ids) for one in sessions] == [1, 1]
    step(engine, sessions)
    step(engine, sessions)
    assert [len(one.completion_ids) for one in sessions] == [3, 3]
    assert all(one.finished for one in sessions)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (exercise_of("038"), None),
        (solution_of("038"), "Your part against before: "),
        (Raises, "Raises raised ValueError: not yet"),
        (SwapsKAndV, "SwapsKAndV gives other tokens than before the lesson"),
    ],
)
def test_the_readers_part_is_a_series_where_it_is_new_and_right(part, says, figures, small_model, capsys):
    found = your_run(part, "038", small_model)
    said = said_by(capsys)
    assert (found.yours is not None) == (says == "Your part against before: ")
    assert (found.comparison.pairs, len(found.comparison.control)) == (2, 2)
    assert found.comparison.effect(*lesson("038").headline) in said
    assert (says or "2 requests x 4 tokens") in said
    assert ("Your part" in said) == (found.yours is not None)
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert ("yours" in labels) == (found.yours is not None)


def test_a_lesson_without_a_part_has_no_run(small_model):
    with pytest.raises(LessonError, match="035 changes nothing"):
        your_run(exercise_of("038"), "035", small_model)


def test_comments_docstrings_and_layout_are_no_difference():
    given, line = exercise("038"), "        for b, block_ids in enumerate(block_ids_list):\n"
    assert given.count(line) == 1
    same = given.replace(line, f"        # all of them\n\n{line}").replace("Append one token", "Write")
    other = given.replace(line, line.replace("enumerate(block_ids_list)", "reversed([*enumerate(block_ids_list)])"))
    found = [differs_from_given(part_in(text, "MyKVAppend"), "038") for text in (given, same, other)]
    assert found == [False, False, True]
