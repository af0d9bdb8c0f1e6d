"""Lesson 062's parts are judged in their world: right ones live through it, wrong ones are told their causes."""

from collections import Counter

import pytest
import torch

from rosecourse.kernels import TRITON_AVAILABLE, triton_runs_on
from rosecourse.lab import check
from rosecourse.lab.checks import trial
from rosecourse.lab.course import COURSES
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.worlds import KV_APPEND_ONE_TABLE as WORLD
from rosecourse.lessons import lesson
from tests.support.cells import assert_not_own
from tests.support.one_table_parts import (
    WRONG,
    ByHand,
    CopiesASlot,
    CopiesByLayer,
    ForgetsTheKernels,
    KeepsTheCount,
    LaunchesAlways,
    LooksUpOnce,
    NoCopy,
    Once,
    OneStore,
    Plain,
    TakesTheGeneralKernel,
)
from tests.support.verdicts import of_the_course

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture(scope="module", autouse=True)
def known_of_the_course():
    """What is compared with is worked out once, before the processes that check a part fork from this one."""
    of_the_course("062")


WITH_THE_IDEA = [Once, OneStore]
WITHOUT_THE_IDEA = {
    COURSES["062"].exercise.begins_as: "still 12 index tensors built in a step of 16 sessions inside their blocks",
    CopiesByLayer: "Perhaps:  a shared block is copied in each layer",
    ForgetsTheKernels: "no Triton kernel is launched in a step of 4 sessions inside their blocks, with a threshold",
    LaunchesAlways: "still 2 Triton kernels launched in a step of 4 sessions inside their blocks, with a threshold",
}
HALF_OF_THE_IDEA = (CopiesByLayer, ForgetsTheKernels)


def met(part):
    """The faults of a part, scenario by scenario."""
    faults = []
    for scenario in WORLD.scenarios:
        try:
            scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))
        except PartIsWrong as wrong:
            faults.append(wrong.fault)
    return faults


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", [lesson("062").after.kv_append, Plain, ByHand, LooksUpOnce], ids=lambda p: p.__name__)
def test_a_right_part_lives_through_every_story(part):
    assert met(part) == []


@pytest.mark.grid(shows=lambda part: {WRONG[part]})
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_with_its_cause(part):
    counted = Counter(fault.cause for fault in met(part))
    assert counted.most_common(1)[0][0] is WRONG[part], counted


def test_what_is_kept_of_a_session_that_has_gone_is_found():
    assert met(KeepsTheCount)


@pytest.mark.grid(1)
@needs_triton
@pytest.mark.parametrize("part", WITH_THE_IDEA, ids=lambda part: part.__name__)
def test_a_part_with_the_idea_passes_whoever_wrote_it(part):
    verdict = check(part, "062")
    assert verdict.passed, verdict


@pytest.mark.grid(1)
@needs_triton
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_a_part_without_the_idea_costs_is_told(part):
    verdict = check(part, "062")
    assert verdict.correct, verdict
    assert not verdict.passed
    assert verdict.partly == (part in HALF_OF_THE_IDEA)
    assert WITHOUT_THE_IDEA[part] in str(verdict), verdict


@needs_triton
def test_the_courses_own_part_is_not_the_learners():
    assert_not_own("062", "`KVAppend.append_token_batch`")


@needs_triton
def test_what_goes_wrong_only_in_a_kernel_is_seen():
    assert met(TakesTheGeneralKernel) == []  # where none is let in
    verdict = check(TakesTheGeneralKernel, "062")
    assert verdict.cause is Cause.STATE_KEPT, verdict


@pytest.mark.skipif(not triton_runs_on(torch.device("cpu")), reason="needs Triton's interpreter")
def test_a_check_on_a_cpu_says_that_the_kernels_ran():
    said = str(check(lesson("062").after.kv_append, "062"))
    assert "the kernels of large batches: Triton's interpreter runs them here" in said
    assert "not to be seen on a CPU: a pinned buffer" in said


def test_without_triton_all_but_the_kernels_is_judged(monkeypatch):
    monkeypatch.setattr(trial, "triton_runs_on", lambda device: False)
    verdict = check(ForgetsTheKernels, "062")
    assert verdict.passed, verdict
    assert "not to be seen on a CPU: the kernels of large batches (Triton needs a GPU, or " in str(verdict)


def test_a_copy_that_is_not_made_is_told_from_one_that_is_too_short():
    assert "nothing of the shared block was copied into the new one in layer 0" in str(check(NoCopy, "062"))
    assert "the copy has too few slots" in str(check(CopiesASlot, "062"))
