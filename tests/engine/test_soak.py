"""Hazard 23: random submit, cancel, fork, finish, preempt and step over tiny pools, against a shadow of every slot.

Twice: by hypothesis, which makes a failure small, and by the seeded hand of `support/soak.py`, which is quick, on every
rung of the ladder. `make soak` gives the latter a million steps.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rosecourse.kernels import TRITON_AVAILABLE
from tests.support.machine import MOST_NEW, PARTS, SCHEDULERS, Machine
from tests.support.oracles import prompts_of
from tests.support.soak import World
from tests.support.tag_model import CONTEXT

STEMS = prompts_of([CONTEXT, CONTEXT], 4)  # the same few tokens come again after other ones
NUMBERS = st.integers(0, 7)
REQUESTS = st.tuples(st.sampled_from(STEMS), st.integers(0, CONTEXT), NUMBERS, st.integers(0, MOST_NEW))


class Soak(RuleBasedStateMachine):
    """Hazard 23, in small: what `Machine` does and looks at, in an order that hypothesis chooses."""

    @initialize(
        parts=st.sampled_from(list(PARTS)[::-1]),  # the best first: hypothesis likes the first
        scheduler=st.sampled_from(list(SCHEDULERS)),
        block_size=st.sampled_from([1, 2, 4, 16]),
        num_blocks=st.sampled_from([7, 24, 6, 5, 4, 3, 2, 1]),
        prefix_cache=st.booleans(),
        batch=st.sampled_from([6, 4, 2, 1]),
        prefill_batch=st.sampled_from([6, 4, 2, 1]),
        requests=st.lists(REQUESTS, min_size=1, max_size=6),
    )
    def start(self, requests, **config):
        self.machine = Machine(**config)
        self.submit(requests)
        self.machine.submit([1] * self.machine.room, 1)  # one token too many
        self.machine.step()

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def submit(self, requests):
        """Prompts begin alike and end in a token of their own; all that fits is as likely."""
        for stem, length, own, fewer in requests:
            most = min(self.machine.room - 1, MOST_NEW)
            new = most - fewer % most
            self.machine.submit([*stem[: length % (self.machine.room - new)], own], new)

    @precondition(lambda self: self.machine.live)
    @rule(number=NUMBERS)
    def cancel(self, number):
        self.machine.cancel(number)

    @precondition(lambda self: self.machine.holders)
    @rule(number=NUMBERS, last_token=st.none() | NUMBERS, new=st.none() | st.integers(1, MOST_NEW))
    def fork(self, number, last_token, new):
        self.machine.fork(number, last_token, new)
        self.step(2)

    @precondition(lambda self: self.machine.holders)
    @rule()
    def preempt(self):
        self.machine.preempt()

    @precondition(lambda self: self.machine.holders)
    @rule(num_blocks=st.integers(1, 7), times=st.integers(1, 3))
    def step_in_a_short_pool(self, num_blocks, times):
        self.machine.squeeze(num_blocks)
        self.step(times)
        self.machine.release()

    @precondition(lambda self: self.machine.live)
    @rule(times=st.integers(1, 9))
    def step(self, times):
        for _ in range(times):
            self.machine.step()

    def teardown(self):
        if hasattr(self, "machine"):
            self.machine.finish()


TestSoak = Soak.TestCase
TestSoak.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


@pytest.mark.grid
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("parts", PARTS)
def test_every_rung_under_a_seeded_hand(parts, scheduler):
    counts = sum((World(0, n, parts=parts, scheduler=scheduler).run(200) for n in range(12)), Counter())
    for event in ("sessions", "preemptions", "forks", "cancels", "copies", "evictions", "exhausted"):
        assert counts[event] > 0, f"a soak without {event} says nothing of them"


@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
@pytest.mark.parametrize("number", range(2))
def test_the_append_kernels_under_a_seeded_hand(number):
    """Through the interpreter, which is slow, wherever there is no GPU."""
    World(1, number, parts="061", triton_batch=2, num_blocks=7, batch=4, block_size=4).run(100)
