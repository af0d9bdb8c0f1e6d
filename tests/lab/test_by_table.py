"""Lesson 063's parts are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

import pytest

from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.worlds import KV_APPEND_BY_TABLE as WORLD
from rosecourse.lessons import lesson
from tests.support.by_table_parts import RIGHT, WITHOUT_THE_IDEA, WRONG, OwnKernel, OwnKernelIn32Bits
from tests.support.cells import assert_not_own
from tests.support.verdicts import assert_refused, assert_right_but_costly, of_the_course

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture(scope="module", autouse=True)
def known_of_the_course():
    """What is compared with is worked out once, before the processes that check a part fork from this one."""
    of_the_course("063")


def live_through(part, device=None, stories=None):
    for scenario in WORLD.scenarios_on(device):
        if stories is None or scenario.story.__name__ in stories:
            scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))


@pytest.mark.grid(2)
@pytest.mark.parametrize("part", [*RIGHT, lesson("063").after.kv_append, lesson("065").after.kv_append])
def test_a_right_part_lives_through_every_story(part):
    live_through(part)


@pytest.mark.grid(1)
@needs_triton
@pytest.mark.parametrize("part", RIGHT)
def test_a_right_part_without_a_kernel_is_correct_and_lacks_it(part):
    verdict = check(part, "063")
    assert verdict.correct, verdict
    assert len(verdict.missing) == 1
    assert "no Triton kernel is launched in a step of 4 sessions inside their blocks" in verdict.missing[0]


@needs_triton
def test_one_with_a_kernel_of_its_own_passes():
    verdict = check(OwnKernel, "063")
    assert verdict.passed, verdict


@needs_triton
def test_the_courses_own_part_is_right_and_not_the_learners():
    assert_not_own("063", "the kernel `_kv_append_by_table_kernel`")


@pytest.mark.grid(shows=lambda part: {WRONG[part][0]})
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_with_its_cause(part):
    assert_refused(check(part, "063"), *WRONG[part])


@needs_triton
def test_an_offset_of_32_bits_is_found_where_the_cache_is_large():
    with pytest.raises(PartIsWrong, match="in a cache of more than 2"):
        live_through(OwnKernelIn32Bits, "cpu", {"far_offsets"})


@pytest.mark.grid(1)
@needs_triton
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_costs_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(check(part, "063"), WITHOUT_THE_IDEA[part])
