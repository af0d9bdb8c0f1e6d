"""The simulated delivery: who is woken when, and how long a token lies."""

from collections import Counter
from functools import partial

import pytest

import rosecourse as rc
from rosecourse import ConfigError
from rosecourse.measure.delivery_simulation import simulate_delivery

CONFIG = rc.EngineConfig()
LESSON = rc.lesson("068")


def each_token(clock):
    return LESSON.before.delivery(CONFIG)


def in_turns(clock, wakes_per_second):
    return LESSON.after.delivery(CONFIG, wakes_per_second, clock)


def test_up_to_067_each_token_wakes_its_reader_and_lies_for_no_time():
    run = simulate_delivery(each_token, num_readers=5, num_steps=7, step_seconds=0.25)
    assert run.wakes_of_step == [5] * 7
    assert run.delays == [0.0] * 35


@pytest.mark.parametrize(("readers", "wakes_a_step"), [(12, 1), (12, 3), (12, 12), (12, 40), (7, 2)])
def test_in_turns_a_step_wakes_so_many_and_a_token_waits_for_one_turn_at_most(readers, wakes_a_step):
    in_each = partial(in_turns, wakes_per_second=wakes_a_step * 4)
    run = simulate_delivery(in_each, readers, num_steps=40, step_seconds=0.25)
    most = min(readers, wakes_a_step)
    assert run.wakes_of_step[0] == readers  # the first tokens wait for nothing
    assert run.wakes_of_step[1:-1] == [most] * 38  # the flush comes with the last step
    turn = -(-readers // most)  # steps
    assert max(run.waited) == turn - 1
    woken = Counter(wake.reader for wake in run.wakes)
    assert min(woken.values()) >= 40 // turn  # nobody is left out


def test_each_reader_gets_each_token_once():
    run = simulate_delivery(partial(in_turns, wakes_per_second=9), num_readers=6, num_steps=11, step_seconds=0.25)
    tokens = Counter()
    for wake in run.wakes:
        tokens[wake.reader] += wake.tokens
    assert tokens == dict.fromkeys(range(6), 11)
    assert len(run.waited) == 66


@pytest.mark.parametrize("wrong", [{"num_readers": 0}, {"num_steps": 0}, {"num_steps": 10**9}, {"step_seconds": -1}])
def test_sizes_that_make_no_run_are_refused(wrong):
    sizes = {"num_readers": 2, "num_steps": 3, "step_seconds": 0.5} | wrong
    with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} is .*: give"):
        simulate_delivery(each_token, **sizes)
