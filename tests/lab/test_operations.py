"""The operations of 069 to 071 are checked: right ones pass, whoever wrote them; wrong ones are refused."""

import pytest
import torch

from rosecourse import lesson
from rosecourse.kernels import INTERPRETED
from rosecourse.kernels.reference import add_norm
from rosecourse.lab.checking.models.operation_stories import OperationStories
from rosecourse.lab.checking.models.operations import KernelOperations, Operations
from rosecourse.lab.checking.operations_seen import AddNorms
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.checks import judging
from rosecourse.lab.checks.checking import judged_apart
from rosecourse.lab.checks.judging import judged
from tests.lab.wrong_operations import COSTLY, WRONG, damaged
from tests.support import ops_parts
from tests.support.verdicts import operations_of, trial_of

if INTERPRETED:
    from tests.support import kernel_ops, order_parts

NUMBERS = ("069", "070", "071") if INTERPRETED else ("069",)
RIGHT = {"069": ops_parts.RIGHT, **({"070": kernel_ops.RIGHT, "071": order_parts.RIGHT} if INTERPRETED else {})}


def rows(table):
    return [pytest.param(number, row, id=f"{number} {row[0]}") for number in NUMBERS for row in table[number]]


@pytest.mark.parametrize(("number", "row"), rows(WRONG))
def test_wrong_operations_are_refused_in_a_small_story(number, row, monkeypatch):
    if number != "069":  # in an interpreter it takes long to make a story smaller
        monkeypatch.setattr(judging, "smallest", lambda stories, story, found, try_it: (story, found))
    verdict = judged_apart(damaged(number, *row), lesson(number))
    assert not verdict.correct, verdict
    assert number != "069" or operations_of(verdict) <= 8, verdict  # most have 6 at most


@pytest.mark.parametrize(("number", "row"), rows(COSTLY))
def test_operations_without_the_idea_are_right_and_cost_more(number, row):
    trial, part = trial_of(number), damaged(number, *row)
    assert not any(outcome(trial.stories, lambda: part, trial.stories.number(n)) for n in range(3))
    assert any(trial.missing(part))


@pytest.mark.parametrize(("number", "part"), [(n, part) for n in NUMBERS for part in RIGHT[n]], ids=str)
def test_operations_in_other_styles_pass(number, part):
    trial = trial_of(number)
    for n in range(8):
        found = outcome(trial.stories, lambda: part, trial.stories.number(n))
        assert found is None, (n, found)
    assert not list(trial.missing(part))


def test_where_kernels_do_not_run_nothing_is_judged(monkeypatch):
    monkeypatch.setattr(judging, "triton_runs_on", lambda device: False)
    verdict = judged(ops_parts.Pairs, "070", lambda story: None)
    assert verdict.correct
    assert not verdict.passed
    assert "TRITON_INTERPRET=1" in str(verdict)


@pytest.mark.parametrize("model", [Operations, KernelOperations])
def test_a_story_of_a_number_is_always_the_same(model):
    stories = OperationStories(model)
    assert [stories.number(n) for n in range(20)] == [OperationStories(model).number(n) for n in range(20)]


def test_memory_that_is_not_written_shows():
    class Holes(ops_parts.Pairs):
        def norm_linear(self, x, norm, linear):
            made = super().norm_linear(x, norm, linear)
            holes = torch.empty_like(made)
            holes[:, 1:] = made[:, 1:]
            return holes

    found = judged(Holes, "069", lambda story: None).wrong
    assert "NaN" in found.fact
    assert found.lines == ("x = embed(1 row)", "norm_linear(x, ln_1, attn_c_attn of layer 0)")


@pytest.mark.parametrize(
    "delta",
    [torch.ones(4), torch.ones(1, 4).expand(2, 4), torch.ones(4, 2).T, torch.ones(2, 4).half()],
    ids=["a row", "expanded", "transposed", "half"],
)
def test_add_norm_must_be_given_what_its_kernel_can_read(delta):
    with AddNorms() as seen:
        add_norm(torch.ones(2, 4), delta, torch.ones(4), torch.ones(4), 0.1)
    assert seen.wrong.startswith("`add_norm` must be given")
    assert seen.number == 1
