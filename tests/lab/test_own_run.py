"""The live run of a lesson: before, after and the control, and the reader's part once it is new and right."""

import sys
from dataclasses import replace

import pytest

from rosecourse import ConfigError, LessonError, lesson
from rosecourse.lab import your_run
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises import own_run, part_file
from rosecourse.lab.exercises.own_run import WORK, LiveWork, differs_from_given
from rosecourse.models.gpt2 import GPT2
from rosecourse.pictures.plots import lesson_figure
from tests.support.cells import exercise, exercise_of, part_in, solution_of

KVAppend = lesson("038").after.kv_append


class SwapsKAndV(KVAppend):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, values, keys)


class OnePosition(KVAppend):
    """Right in a batch of equal lengths, which is what is timed."""

    def __call__(self, sessions, keys, values):
        lengths = {session.num_cached_tokens for session in sessions}
        super().__call__(sessions, keys, values if len(lengths) == 1 else keys)


class NaNBehind30(KVAppend):
    """Right in short sessions."""

    def __call__(self, sessions, keys, values):
        long = max(session.num_cached_tokens for session in sessions) >= 30
        super().__call__(sessions, keys, [value * float("nan") for value in values] if long else values)


class Raises(KVAppend):
    def __call__(self, sessions, keys, values):
        raise ValueError("not\nyet")


class Interrupted(KVAppend):
    def __call__(self, sessions, keys, values):
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """The figures of live runs, which are short here."""
    drawn = []
    short = {number: replace(WORK.get(number, LiveWork()), requests=(2, 2), new_tokens=(4, 4)) for number in COURSES}
    monkeypatch.setattr(own_run, "WORK", short)
    monkeypatch.setattr(own_run, "PAIRS", 2)
    monkeypatch.setattr(own_run, "lesson_figure", lambda one, *rest: drawn.append(one) or lesson_figure(one, *rest))
    return drawn


def said_by(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("number", COURSES)
def test_a_new_part_is_a_series_in_every_lesson(number, figures, small_model, capsys):
    work, model = WORK.get(number, LiveWork()), small_model
    found, said = your_run(solution_of(number), number, model), said_by(capsys)
    assert (found.comparison.pairs, len(found.comparison.control)) == (2, 2)
    assert found.comparison.effect(*lesson(number).headline) in said
    assert work.on_a_cpu in said
    assert (found.yours is None) == work.simulated == ("gives the same tokens. It is not timed" in said)
    assert ("Your part against before: " in said) == ("yours " in repr(found)) == (found.yours is not None)
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert ("yours" in labels) == (found.yours is not None)


@pytest.mark.parametrize("number", ["038", "066", "071"])
def test_an_untouched_cell_is_no_series(number, small_model, capsys):
    assert your_run(exercise_of(number), number, small_model).yours is None
    assert getattr(lesson(number).after, COURSES[number].world.part).__name__ not in said_by(capsys)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Raises, "Raises raised ValueError: not yet. It is left out"),
        (SwapsKAndV, "SwapsKAndV gives other tokens than before the lesson in"),
        (OnePosition, 'check(OnePosition, "038") says what is wrong.'),
    ],
)
def test_a_wrong_part_is_left_out(part, says, small_model, capsys):
    assert your_run(part, "038", small_model).yours is None
    assert says in said_by(capsys)


def test_a_part_that_fails_in_long_sessions_alone_is_left_out(small_model, capsys, monkeypatch):
    monkeypatch.setitem(own_run.WORK, "038", LiveWork(requests=(2, 2), new_tokens=(34, 34)))
    assert your_run(NaNBehind30, "038", small_model).yours is None
    assert "NaNBehind30 raised RequestFailed: request 0 gave" in said_by(capsys)


def test_an_interrupt_ends_the_run(small_model):
    with pytest.raises(KeyboardInterrupt):
        your_run(Interrupted, "038", small_model)


def test_operations_in_16_bit_are_compared_in_float32(monkeypatch, model):
    asked = []
    monkeypatch.setattr(own_run, "load_model", lambda **which: asked.append(which) or model)
    half = GPT2(model.shape, {name: weight.half() for name, weight in model.weights.items()}, model.tokenizer, "half")
    rung = lesson("069")
    assert own_run.trouble_with(rung.after, rung, half, "Mine") == ""
    assert asked == [{"device": "cpu", "dtype": "float32"}]


def test_a_lesson_without_a_part_has_no_run(small_model):
    with pytest.raises(LessonError, match="035 changes nothing"):
        your_run(exercise_of("038"), "035", small_model)


def test_a_kernel_beside_the_class_counts():
    given = exercise("071")
    other = given.replace("    wait()\n    start_next()\n", "    start_next()\n    wait()\n")
    assert other != given
    assert [differs_from_given(part_in(text), "071") for text in (given, other)] == [False, True]
    assert differs_from_given(solution_of("071"), "071")


def test_a_part_that_has_passed_may_be_the_before_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(part_file, "desk_here", lambda: tmp_path)
    monkeypatch.setattr(part_file, "PASSED", {"038"})
    with pytest.raises(ConfigError, match="no part of yours is kept for lesson 038"):
        part_file.kept_part("038")
    file = tmp_path / "mine.py"
    file.write_text("from rosecourse.lessons import l038\n\n\nclass Mine(l038.KVAppend):\n    def own(self): ...\n")
    part_file.keep_part(part_file.load_part(file, "Mine"), "038")
    engines = []
    monkeypatch.setattr(own_run, "compare_with", lambda found, *_: engines.append(found) or sys.exit())
    with pytest.raises(SystemExit):
        own_run.your_run(lesson("059").after.kv_append, "059", before="038")
    assert type(engines[0]["before"].decode_step.kv_append).__name__ == "Mine"
