"""Lesson 070's operations are judged: right kernels pass, in any style; wrong and costly ones are told apart."""

from functools import cache

import pytest
import torch

from rosecourse import InferenceEngine
from rosecourse.lab import check
from rosecourse.lab.checks import judging
from rosecourse.lab.checks.observing import observe
from rosecourse.lab.course import product_with_ends
from rosecourse.lab.course.l070 import STEPS
from rosecourse.lab.course.scenes import side_by_side
from rosecourse.lab.exercises.cells import exercise, solution
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.kernel_memory import guarded_kernels
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.ops_kernel_scenarios import OPS_IN_KERNELS
from rosecourse.lab.world.worlds import OPS_WITH_KERNELS as WORLD
from tests.support.cells import exercise_of, solution_of
from tests.support.kernel_ops import RIGHT, Base, ByTheCoursesLaunch
from tests.support.verdicts import judged
from tests.support.wrong_kernel_ops import WITHOUT_THE_IDEA, WRONG, MeanOfSquares

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="as it is on a CPU")


def quietly(part):
    return judged(part, "070")


def played(part, scenario):
    with guarded_kernels():
        scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
@pytest.mark.parametrize("scenario", OPS_IN_KERNELS, ids=lambda scenario: scenario.name)
@pytest.mark.grid
def test_one_of_another_style_lives_through_a_scenario(part, scenario):
    played(part, scenario)


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", [solution_of("070"), *RIGHT], ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "070")
    assert verdict.passed, verdict


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_wrong_operations_are_refused_with_their_cause(part):
    assert not quietly(part).correct


@pytest.mark.grid
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
@pytest.mark.parametrize("scenario", OPS_IN_KERNELS, ids=lambda scenario: scenario.name)
def test_what_costs_more_is_right(part, scenario):
    played(part, scenario)


@cache
def step_of(part, at=STEPS[2]):
    return observe(Learner(part, WORLD.called_with), WORLD, at, "cpu")


# -- what is counted --------------------------------------------------------------------------------------------------


def test_a_launch_counts_as_one_whoever_makes_it_and_the_exercise_has_many_operations_more():
    begins, ends, launched = (
        dict(step_of(part).ops.each) for part in (exercise_of("070"), solution_of("070"), ByTheCoursesLaunch)
    )
    assert begins == {"embed": 3, "norm_linear": 3, "norm_linear_gelu": 4, "linear_add": 3, "logits": 2}
    assert ends == launched == dict.fromkeys(begins, 1)


def test_weights_are_read_once_by_the_course_and_its_steps_are_four_a_layer():
    for at in STEPS:
        seen = step_of(product_with_ends.LayerOps, at)
        assert seen.ops.operations == 4 * at.layers + 2 == seen.launched
        assert seen.ops.times_read <= 1
    assert step_of(product_with_ends.LayerOps, STEPS[1]).ops.times_read == 1


def test_the_stories_have_the_sizes_at_which_kernels_go_wrong():
    sizes = {scenario.name: scenario.sizes for scenario in OPS_IN_KERNELS}
    widths = {one.heads * one.head_dim for one in sizes.values()}
    assert {8, 15, 72} <= widths
    assert {1, 97, 256, 300} <= {one.vocab_size for one in sizes.values()}
    assert any(one.mean > 10 for one in sizes.values())
    rows = []

    class Notes(Base):
        def embed(self, token_ids, *given):
            rows.append(len(token_ids))
            return super().embed(token_ids, *given)

    played(Notes, next(scenario for scenario in OPS_IN_KERNELS if "35" in scenario.name))
    assert rows == [35, 17, 16]


def test_a_mean_of_squares_is_right_until_the_mean_is_large():
    near, far = (next(s for s in OPS_IN_KERNELS if s.name == name) for name in ("two layers", "rows with a large mean"))
    played(MeanOfSquares, near)
    with pytest.raises(PartIsWrong) as wrong:
        played(MeanOfSquares, far)
    assert wrong.value.fault.cause is Cause.WRONG_NORM
    assert "it is nearly right; the rows have means of up to" in wrong.value.fault.details[-1]


def test_where_kernels_do_not_run_nothing_is_judged(monkeypatch):
    monkeypatch.setattr(judging, "triton_runs_on", lambda device: False)
    verdict = quietly(Base)
    assert verdict.correct
    assert not verdict.passed
    assert "TRITON_INTERPRET=1" in str(verdict)


# -- the hunt ---------------------------------------------------------------------------------------------------------


def wrong_ones(found, model):
    return [
        {name for name, session in ours.items() if session.token_ids != theirs[name].token_ids}
        for _, _, ours, _, theirs in side_by_side(found, model)
    ]


def test_in_the_hunt_the_fifth_is_wrong_from_its_second_step_and_the_next_from_its_first(model):
    found = hunt("070")
    assert wrong_ones(found, model) == [set()] * 6 + [{"E"}] * 3 + [{"E", "F"}] * 5
    assert found.answer(session="E", moment=6, handed_in=4, line=43).found
    _, broken = found.engines(model)
    assert found.broken.ops is found.part
    assert found.replaces == "ops"
    assert broken.decode_step.runner.work.forward.model.ops.handed_in == {}


def test_the_hunts_mended_part_is_right_and_leaves_no_counter_behind(model):
    found = hunt("070")
    mended = InferenceEngine(model, found.config, found.right.with_(ops=found.mended))
    right = InferenceEngine(model, found.config, found.right)
    for ours, theirs in zip(found.scene(right), found.scene(mended), strict=True):
        assert {n: s.token_ids for n, s in ours.items()} == {n: s.token_ids for n, s in theirs.items()}
    counters = mended.decode_step.runner.work.forward.model.ops.handed_in.values()
    assert len(counters) == 4 * model.shape.num_layers
    assert not any(one.any() for one in counters)


def test_the_exercise_begins_with_a_kernel_and_ends_with_two():
    begins, ends = exercise("070"), solution("070")
    assert begins.count("@triton.jit") == 1
    assert ends.count("@triton.jit") == 2
    assert "class Folded" in ends
    assert max(map(len, begins.splitlines())) <= 100
