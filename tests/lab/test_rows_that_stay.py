"""Lesson 064's parts are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

import pytest

from rosecourse.lab import check
from rosecourse.lab.course.starts import Rows as Start
from rosecourse.lab.exercises.racing import race
from rosecourse.lab.hunts.hunting import hunt
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.pool import Sizes
from rosecourse.lab.world.rows_oracle import RowsOracle
from rosecourse.lab.world.worlds import ROWS_THAT_STAY as WORLD
from rosecourse.lessons import lesson
from tests.support.cells import assert_not_own
from tests.support.right_rows import RIGHT, WITHOUT_THE_IDEA, FixedSeats
from tests.support.verdicts import assert_refused, assert_right_but_costly, of_the_course
from tests.support.wrong_rows import WRONG

COURSES_OWN = lesson("064").after.rows


@pytest.fixture(scope="module", autouse=True)
def known_of_the_course():
    """What is compared with is worked out once, before the processes that check a part fork from this one."""
    of_the_course("064")


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", [*RIGHT, COURSES_OWN, hunt("064").mended])
def test_a_right_part_lives_through_every_story(part):
    for scenario in WORLD.scenarios:
        scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", [FixedSeats, hunt("064").mended], ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "064")
    assert verdict.passed, verdict


def test_the_courses_own_part_is_right_and_not_the_learners():
    assert_not_own("064", "`Rows.plan`")


def test_what_the_exercise_gives_is_the_learners():
    """A method of the exercise may be the course's, to the letter, and stands in a text that is nobody's file."""
    source = "from rosecourse.lab.course.starts import Rows\n\nclass MyRows(Rows):\n    def holds(self, sessions):\n"
    body = (
        "return len(sessions) == len(self.tables) and all(map(is_, [s.table for s in sessions], self.tables))",
        "from operator import is_\n",
    )
    space = {"__name__": "elsewhere"}
    exec(body[1] + source + f"        {body[0]}\n", space)
    verdict = check(space["MyRows"], "064")
    assert verdict.missing
    assert not verdict.not_own


@pytest.mark.grid(shows=lambda part: {WRONG[part][0]})
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_with_its_cause(part):
    assert_refused(check(part, "064"), *WRONG[part])


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_costs_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(check(part, "064"), WITHOUT_THE_IDEA[part])


def test_tokens_are_all_different_and_parameters_are_each_sessions_own():
    oracle = RowsOracle(Learner(Start, WORLD.called_with), Sizes())
    a, b = oracle.start(3), oracle.start(2)
    child = oracle.fork(a)
    for _ in range(8):
        oracle.step(a, b, child)
    own = [token for t in (a, b) for token in t.session.token_ids] + child.session.token_ids[3:]
    assert len(set(own)) == len(own)
    assert child.session.token_ids[:3] == a.session.token_ids[:3]
    assert len({str(t.session.params) for t in (a, b, child)}) == 3


def test_rows_race_against_the_whole_step_before(small_model):
    found = race(FixedSeats, "064", small_model, rounds=1)
    assert found.ladder.titles == ["lesson 063", "FixedSeats", "lesson 064"]


def test_the_hunts_part_is_wrong_only_where_one_joins_as_another_leaves(model):
    found = hunt("064")

    def play(engine, steps_between):
        sessions = dict(next(found.scene(engine)))
        made = list(sessions.values())
        for step in range(6):
            if step == 2:
                engine.free(sessions.pop("A"))
            if step == 2 + steps_between:
                sessions["E"] = engine.new_session([53] * 7, made[0].params)
                made.append(sessions["E"])
                engine.take_tokens([sessions["E"]], engine.prefill([sessions["E"]]))
            live = list(sessions.values())
            engine.take_tokens(live, engine.decode_step_sessions(live))
        return [session.completion_ids for session in made]

    assert len({str(play(engine, 1)) for engine in found.engines(model)}) == 1
    assert len({str(play(engine, 0)) for engine in found.engines(model)}) == 2
