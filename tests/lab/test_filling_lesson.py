"""The part of 074 is checked: right ways to fill a step pass, in whatever style; wrong ones are refused."""

import pytest

from rosecourse import lesson
from rosecourse.lab.checks.checking import judged_apart
from rosecourse.lessons import l074
from tests.lab.wrong_operations import damaged
from tests.support.cells import exercise_of
from tests.support.verdicts import operations_of, trial_of

SIZE, LEFT = "sizes.append(min(tokens, left))", "left = self.budget - num_decoding"
WRONG = [
    ("who decodes is forgotten", LEFT, "left = self.budget"),
    ("one token too many", LEFT, "left = self.budget - num_decoding + 1"),
    (
        "the newest first",
        "for tokens in prompts:",
        "for tokens in prompts[::-1]:",
        "return sizes",
        "return sizes[::-1]",
    ),
    ("each has the same share", SIZE, "sizes.append(min(tokens, left // len(prompts)))"),
    ("more than a prompt has", SIZE, "sizes.append(left)"),
    ("below nothing", "left -= sizes[-1]", "left -= tokens"),
    ("nothing where the prompt does not fit", SIZE, "sizes.append(tokens if tokens <= left else 0)"),
    ("the prompts are changed", "return sizes", "prompts.clear()\n        return sizes"),
    ("a list that is too short", "return sizes", "return [size for size in sizes if size]"),
]


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[0])
def test_a_step_filled_wrongly_is_refused_in_a_small_story(row):
    verdict = judged_apart(damaged("074", *row), lesson("074"))
    assert not verdict.correct, verdict
    assert operations_of(verdict) <= 6, verdict


def test_whole_prompts_are_over_the_budget():
    said = str(judged_apart(l074.FillStep, lesson("074")))
    assert "a step has at most 1 token; found: 2, 0 of them for who decodes" in said


class ByNumber:
    def __init__(self, budget):
        self.budget = budget

    def __call__(self, num_decoding, prompts):
        room, before = self.budget - num_decoding, [sum(prompts[:n]) for n in range(len(prompts))]
        return [max(0, min(tokens, room - used)) for tokens, used in zip(prompts, before, strict=True)]


def test_a_step_that_is_filled_in_another_style_passes():
    verdict = judged_apart(ByNumber, lesson("074"))
    assert verdict.passed, verdict


def test_the_oldest_prompt_alone_lacks_the_idea():
    (said,) = trial_of("074").missing(exercise_of("074"))
    assert said.endswith(": 10; with the course's part: 0")
