"""`check` lets every right part pass, and shows the smallest story in which a wrong one goes wrong."""

import os
import time

import pytest

from rosecourse import LESSONS, LessonError
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.checking import apart
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.course import COURSES
from rosecourse.lessons import l036, l038, l059
from tests.lab.damage import load, whole_parts
from tests.support import by_table_parts, right_copies, right_rows
from tests.support.right_parts import RIGHT
from tests.support.verdicts import trial_of

NUMBERS = ("036", "038", "059", "060")
FEW = 30  # stories: `make soak` plays all of them


def is_right(part, number):
    trial = trial_of(number)
    for n in range(FEW):
        found = outcome(trial.stories, lambda: part, trial.stories.number(n))
        assert found is None, (n, found)
    assert not list(trial.missing(part))


@pytest.mark.parametrize(("number", "part"), [(n, part) for n in NUMBERS for part in RIGHT[n]], ids=str)
def test_parts_in_other_styles_pass(number, part):
    is_right(part, number)


LATER = {"063": by_table_parts.RIGHT, "064": right_rows.RIGHT, "065": right_copies.RIGHT}


@pytest.mark.parametrize(("number", "part"), [(n, part) for n in LATER for part in LATER[n]], ids=str)
def test_parts_of_later_lessons_in_other_styles_are_right(number, part):
    trial = trial_of(number)
    assert not any(outcome(trial.stories, lambda: part, trial.stories.number(n)) for n in range(FEW))


@pytest.mark.parametrize("path", whole_parts("right"), ids=lambda path: path.stem)
def test_right_parts_by_eyes_new_to_the_check_pass(path):
    number = path.name[:3]
    if number == "061" and not TRITON_AVAILABLE:
        pytest.skip("Triton exists for Linux only")
    is_right(load(path), number)


class MyTables(l036.BlockTables):
    """A subclass that overrides one method, as the exercises have it."""

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        return super().get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)


def test_subclass_of_a_rungs_class_passes_without_a_zero_too():
    verdict = check(MyTables, "36")
    assert verdict.passed, verdict
    assert "whole engines" in str(verdict)


class OneSlotTooFew(l059.KVAppend):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        for block_ids in block_ids_list:
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info and info.length == self.kv.block_size - 1:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + info.length))
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)


class Swaps(l038.KVAppend):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, values, keys)


def test_the_smallest_story_is_the_verdict():
    assert str(check(Swaps, "038")).splitlines() == [
        "✗ Swaps, lesson 038: not right yet.",
        "  The smallest story that goes wrong:",
        "      start A with 0 tokens",
        "      step [A]   <- here",
        "  layer 0, block 0, slot 0: K must be A0; found: V of A0",
        "  the right numbers lie in layer 0, block 0, slot 0 of V",
        "      block 0 of A: before [.  .  .  . ]  found [V of A0|K of A0 .  .  . ]",
    ]
    assert "its list shows" in str(check(OneSlotTooFew, "059"))


def test_the_same_class_gets_the_same_verdict():
    assert str(check(OneSlotTooFew, "059")) == str(check(OneSlotTooFew, "059"))


class Hangs(l038.KVAppend):
    def __call__(self, sessions, keys, values):
        while len(sessions) > 1:
            pass
        super().__call__(sessions, keys, values)


class Sleeps(l038.KVAppend):
    def __call__(self, sessions, keys, values):
        time.sleep(1000)


class Leaves(l038.KVAppend):
    def __call__(self, sessions, keys, values):
        os._exit(3)


@pytest.mark.parametrize(
    ("part", "says"),
    [(Hangs, "it hangs\n  in line"), (Sleeps, "it hangs\n  in line"), (Leaves, "with exit code 3\n  in line")],
)
def test_part_that_hangs_or_exits_is_told_with_its_line(part, says, monkeypatch):
    monkeypatch.setattr(apart, "WORK_LIMIT", 1.0)
    monkeypatch.setattr(apart, "WAIT_LIMIT", 1)
    assert says in str(check(part, "038"))


def test_check_of_what_is_no_part_costs_one_line():
    assert "check wants the class itself: check(MyPart, '038'), not an object of int" in str(check(3, "038"))
    with pytest.raises(LessonError, match="replaces no part"):
        check(Swaps, "035")


def test_every_lesson_has_its_stories_and_its_idea():
    for rung in LESSONS:
        if rung.number in COURSES:
            assert trial_of(rung.number).stories.count > 10
            assert COURSES[rung.number].idea
