"""Random requests, cancels, forks, preemptions, faults and interrupts over tiny pools; longer by `make soak`."""

from collections import Counter

import pytest

from rosecourse.kernels import TRITON_AVAILABLE
from tests.support.fault_world import FaultWorld
from tests.support.machine import PARTS, SCHEDULERS
from tests.support.soak import World


@pytest.mark.parametrize("parts", PARTS)
def test_every_rung_under_a_seeded_hand(parts):
    """Both schedulers in turns, against a shadow of every slot.

    Hazard 2, Hazard 6, Hazard 7, Hazard 9, Hazard 11, Hazard 12, Hazard 14, Hazard 18, Hazard 23, Hazard 25, Hazard 26.
    """
    kinds = list(SCHEDULERS)
    counts = sum((World(n, parts=parts, scheduler=kinds[n % 2]).play(200) for n in range(8)), Counter())
    for event in ("sessions", "refused", "preemptions", "forks", "cancels", "copies", "evictions", "exhausted"):
        assert counts[event] > 0, f"a soak without {event} says nothing of them"


@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
@pytest.mark.parametrize("number", range(2))
def test_the_append_kernels_under_a_seeded_hand(number):
    """Through the interpreter, which is slow, wherever there is no GPU."""
    World(number, parts="061", triton_batch=2, num_blocks=7, batch=4, block_size=4).play(100)


@pytest.mark.parametrize("more", [[], ["interrupts"]], ids=["alone", "and interrupts"])
def test_faults_lose_nothing(more):
    """Hazard 3, Hazard 34: with steps in flight mostly; interrupts come at any time, not at lines."""
    counts = sum((FaultWorld(number, bool(more)).play() for number in range(15)), Counter())
    for event in ("faults", "forks", "cancels", "preemptions", "stop", "error", *more):
        assert counts[event] > 0, f"worlds without {event} say nothing of them"
