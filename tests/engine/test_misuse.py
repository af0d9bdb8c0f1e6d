"""Misuse is refused by name, before anything has changed: a table of cases, and what no case of it may touch."""

import pytest

from tests.support.misuses import MISUSES, World


@pytest.fixture(scope="module")
def undisturbed(small_model):
    """What comes of the sessions if nobody does anything wrong."""
    return World(small_model).finish()


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_an_error_that_changes_nothing(small_model, undisturbed, name):
    """Hazard 36: the named error on one line; books, sessions and every later token are as without it."""
    error, misuse = MISUSES[name]
    world = World(small_model)
    before = world.books()
    with pytest.raises(error) as caught:
        misuse(world)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 250
    assert world.books() == before
    assert world.finish() == undisturbed


def test_there_are_enough_of_them():
    assert len(MISUSES) > 200
