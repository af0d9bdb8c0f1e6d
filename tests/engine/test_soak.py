"""Random requests, cancels, forks and preemptions over tiny pools, against a shadow of every slot: `make soak`."""

from collections import Counter

import pytest

from rosecourse.kernels import TRITON_AVAILABLE
from tests.support.machine import PARTS, SCHEDULERS
from tests.support.soak import World


@pytest.mark.parametrize("parts", PARTS)
def test_every_rung_under_a_seeded_hand(parts):
    """Hazard 23: both schedulers in turns."""
    kinds = list(SCHEDULERS)
    counts = sum((World(0, n, parts=parts, scheduler=kinds[n % 2]).run(200) for n in range(8)), Counter())
    for event in ("sessions", "preemptions", "forks", "cancels", "copies", "evictions", "exhausted"):
        assert counts[event] > 0, f"a soak without {event} says nothing of them"


@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
@pytest.mark.parametrize("number", range(2))
def test_the_append_kernels_under_a_seeded_hand(number):
    """Through the interpreter, which is slow, wherever there is no GPU."""
    World(1, number, parts="061", triton_batch=2, num_blocks=7, batch=4, block_size=4).run(100)
