"""`check` is fed wrong parts, and names the fault of each."""

import re
from collections import Counter

import pytest
from wrong_parts import cases, damaged
from wrong_parts_append import APPEND
from wrong_parts_ideas import IDEAS
from wrong_parts_tables import TABLES

from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check

CASES = [case for case in cases(TABLES + APPEND + IDEAS) if TRITON_AVAILABLE or case[0] != "061"]


@pytest.mark.parametrize(("number", "wrong"), CASES, ids=str)
def test_the_fault_is_named(number, wrong):
    verdict = check(damaged(number, wrong), number)
    assert not verdict.passed
    assert verdict.correct == wrong.correct, verdict
    assert re.search(wrong.says, str(verdict)), f"{wrong.says!r} is not in\n{verdict}"


def test_each_lesson_has_a_dozen():
    counted = Counter(number for number, _ in CASES)
    assert set(counted) >= {"036", "038", "059", "060"}
    assert min(counted.values()) >= 12
