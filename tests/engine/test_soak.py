"""Random requests, cancels, forks, preemptions, faults and interrupts over tiny pools; longer by `make soak`."""

from collections import Counter

import pytest

from tests.support.machine import PARTS, SCHEDULERS
from tests.support.soak import ENGINES, World


def played(steps, worlds, events):
    """Play all of them; each of the events must have happened."""
    counts = sum((world.play(steps) for world in worlds), Counter())
    assert not [event for event in events if not counts[event]], f"a soak without these says nothing of them: {counts}"


@pytest.mark.parametrize("parts", PARTS)
def test_every_rung_does_what_its_shadow_says(parts):
    """Both schedulers in turns, against a shadow of every slot.

    Hazard 2, Hazard 5, Hazard 6, Hazard 7, Hazard 9, Hazard 10, Hazard 11, Hazard 12, Hazard 14, Hazard 18, Hazard 23,
    Hazard 25, Hazard 26, Hazard 28.
    """
    kinds = list(SCHEDULERS)
    worlds = (World(n, parts=parts, scheduler=kinds[n % 2]) for n in range(8))
    events = ("sessions", "refused", "preemptions", "forks", "cancels", "evictions", "exhausted")
    played(200, worlds, events)


@pytest.mark.parametrize("parts", ENGINES)
def test_faults_and_interrupts_lose_nothing(parts):
    """Hazard 3, Hazard 34: any call raises, before its work or after; SIGINT comes in front of any line."""
    worlds = (World(n, trouble=True, parts=parts) for n in range(10))
    played(100, worlds, ("faults", "interrupts", "errors", "forks", "cancels", "preemptions"))
