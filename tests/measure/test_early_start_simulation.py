"""Simulated kernels in a row: who starts when, and what is won by that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosecourse import ConfigError
from rosecourse.measure.early_start_simulation import (
    AFTER_WAIT,
    ASK,
    AT_END,
    AT_START,
    LAUNCH,
    MOMENTS,
    TAIL,
    WAIT,
    WORK,
    Kernel,
    simulate,
)

TIMES = st.integers(0, 9)
ROWS = st.lists(st.builds(Kernel, st.just("k"), TIMES, TIMES, TIMES), min_size=1, max_size=8)
TWO = (Kernel("one", 2, 5, 1), Kernel("two", 3, 4, 2))


def test_without_an_early_start_everything_comes_after_everything():
    row = simulate(TWO, launch=1, lets_next=AT_END)
    assert [tuple(span) for span in row.spans] == [
        (LAUNCH, 0, 0, 1),
        (ASK, 0, 1, 3),
        (WAIT, 0, 3, 3),
        (WORK, 0, 3, 8),
        (TAIL, 0, 8, 9),
        (LAUNCH, 1, 9, 10),
        (ASK, 1, 10, 13),
        (WAIT, 1, 13, 13),
        (WORK, 1, 13, 17),
        (TAIL, 1, 17, 19),
    ]
    assert (row.gaps, row.in_gaps, row.ends, row.end) == (((9, 13),), 4, (9, 19), 19)
    assert row.unfinished == (0, 0)


def test_what_is_asked_for_early_is_there_when_the_kernel_before_ends():
    row = simulate(TWO, launch=1, lets_next=AFTER_WAIT)
    assert [tuple(span) for span in row.spans if span.kernel == 1] == [
        (LAUNCH, 1, 3, 4),
        (ASK, 1, 4, 7),
        (WAIT, 1, 7, 9),
        (WORK, 1, 9, 13),
        (TAIL, 1, 13, 15),
    ]
    assert (row.gaps, row.in_gaps) == ((), 0)
    assert row.unfinished == (0, 1)


def test_what_takes_longer_than_the_kernel_before_leaves_a_gap():
    row = simulate((Kernel("short", 0, 2, 1), Kernel("long", 6, 1, 0)), launch=1, lets_next=AFTER_WAIT)
    assert row.gaps == ((4, 8),)
    assert row.in_gaps == 4


@given(ROWS, TIMES)
def test_an_earlier_start_is_never_later_and_reaches_one_kernel_back(kernels, launch):
    rows = [simulate(kernels, launch=launch, lets_next=moment) for moment in MOMENTS]
    at_end, after_wait, at_start = rows
    assert at_start.end <= after_wait.end <= at_end.end
    assert at_end.unfinished == (0,) * len(kernels)
    assert max(after_wait.unfinished) <= 1
    for row in rows:
        assert sum(s.duration for s in row.spans if s.what in (WORK, TAIL)) == sum(k.work + k.tail for k in kernels)
        for number, end in enumerate(row.ends[:-1]):  # nobody works before what it reads is there
            assert next(s.start for s in row.spans if (s.what, s.kernel) == (WORK, number + 1)) >= end
    first = launch + kernels[0].ask
    assert at_end.in_gaps == sum(launch + kernel.ask for kernel in kernels[1:])
    assert all(row.end == first + sum(k.work + k.tail for k in kernels) + row.in_gaps for row in rows)


@given(ROWS, TIMES)
def test_a_start_before_the_wait_wins_nothing_where_kernels_are_longer_than_their_start(kernels, launch):
    kernels = [kernel._replace(work=kernel.work + launch + 9) for kernel in kernels]
    after_wait, at_start = (simulate(kernels, launch=launch, lets_next=moment) for moment in (AFTER_WAIT, AT_START))
    assert after_wait.ends == at_start.ends
    assert after_wait.in_gaps == 0


def test_a_start_before_the_wait_meets_two_kernels_that_have_not_ended():
    row = simulate([Kernel("k", 1, 5, 1)] * 4, launch=1, lets_next=AT_START)
    assert row.unfinished == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("kernels", "wrong", "says"),
    [
        ([], {}, "there are no kernels: give one or more"),
        (TWO, {"lets_next": "early"}, "lets_next is 'early': give one of at its end, after its wait, at its start"),
        (TWO, {"launch": -1}, "launch is -1: give a time from 0 to"),
        ([Kernel("one", 1, float("nan"), 1)], {}, "work of one is nan: give a time from 0 to"),
        ([Kernel("one", 1, 1, "2")], {}, "tail of one is '2': give a time"),
    ],
)
def test_bad_input_is_refused(kernels, wrong, says):
    with pytest.raises(ConfigError, match=says):
        simulate(kernels, **{"launch": 1, "lets_next": AT_END} | wrong)
