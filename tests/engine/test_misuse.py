"""Misuse is refused by name, before anything has changed: a table of cases, and what no case of it may touch."""

import pytest

from rosecourse import RequestError, SamplingParams
from tests.support.misuses import MISUSES, World
from tests.support.scheduling import make_engine


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


def test_tokens_that_somebody_adds_by_hand_end_at_the_length_of_the_engine(small_model):
    """Hazard 36: such a session never finishes by itself."""
    engine = make_engine(small_model, max_batch_size=2, max_seq_len=24)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=4, stop_on_eos=False))
    engine.prefill([session])
    while session.num_cached_tokens < engine.max_seq_len:
        session.token_ids.append(7)
        engine.decode_step_sessions([session])
    session.token_ids.append(7)
    with pytest.raises(RequestError, match="max_seq_len is 24, make a new one"):
        engine.decode_step_sessions([session])
