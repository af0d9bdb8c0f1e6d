"""Rows that stay: a step uploads what has changed and no more. That rows are right, `hazards.check_rows` looks at."""

import pytest
import torch

from rosecourse.decode.rows import FIELDS
from tests.support.hazards import Driver

# The rungs that bring new rows, and how many numbers a session brings beside its blocks, or leaves where it sat.
KINDS = {"064": (FIELDS, 0), "066": (FIELDS + 1, 3), "067": (FIELDS + 1, 3), "071": (FIELDS + 1, 3)}


@pytest.fixture(params=KINDS)
def rung(request):
    return request.param


def watched(driver, monkeypatch):
    """How many numbers each plan uploads."""
    rows, uploads = driver.engine.decode_step.rows, []
    upload = rows._upload
    monkeypatch.setattr(rows, "_upload", lambda changes: (uploads.append(len(changes)), upload(changes))[1])

    def step(*sessions):
        uploads.clear()
        driver.step(*sessions)
        assert len(uploads) <= 1
        return sum(uploads)

    return step


def test_a_step_uploads_what_has_changed(small_model, rung, monkeypatch):
    """A session that joins, a new block, a pad, a word of the caller's; nothing where rows change places."""
    driver, (joins, leaves) = Driver(small_model, rung), KINDS[rung]
    step = watched(driver, monkeypatch)
    a, b, c = driver.start_lengths(1, 2, 4, new=40)
    assert step(a, b, c) == 3 * joins + 1 + 1 + 2
    assert [step(a, b, c) for _ in range(8)] == [0, 1, 1, 1, 0, 1, 1, 1]  # blocks of 4
    assert step(c, a, b) == 0
    assert step(c, b) == leaves + 1  # and b's block
    assert step(b, c) == 0
    assert step(a, b, c) == joins + len(a.table) + 1  # who stays away for a step comes back as new; and c's block
    b.token_ids[-1] = 7
    assert step(a, b, c) == 1 + 1  # and a's block
    fork = driver.fork(a, token_id=9)
    assert step(a, b, c, fork) == joins + len(fork.table) + 2  # b's block, and a's copy of the one that they share
    driver.engine.decode_step.rows.forget()
    assert step(c, b) == 2 * joins + len(b.table) + len(c.table)


def test_a_session_that_was_freed_and_comes_back_is_somebody_new(small_model, rung, monkeypatch):
    driver, (joins, _) = Driver(small_model, rung), KINDS[rung]
    step = watched(driver, monkeypatch)
    a, b = driver.start_lengths(3, 5)
    step(a, b)
    rows = driver.engine.decode_step.rows
    assert rows.holds([a, b])
    assert not any(rows.holds(others) for others in ([b, a], [a], [a, b, driver.fork(b)], []))
    driver.engine.free(b)
    driver.engine.take_tokens([b], driver.engine.prefill([b]))
    assert not rows.holds([a, b])
    assert step(a, b) == joins + len(b.table) + 1
    rows.forget()
    assert not rows.holds([a, b])


def test_the_list_of_chosen_tokens_is_its_callers(small_model, rung, monkeypatch):
    """Whoever changes the list, and the sessions' last tokens with it, changes the rows too."""
    driver = Driver(small_model, rung, block_size=16)
    step = watched(driver, monkeypatch)
    sessions = driver.start_lengths(3, 4)
    step(*sessions)
    logits = driver.engine.decode_step_sessions(sessions)
    chosen = driver.engine.decode_step.choose(sessions, logits)
    driver.engine.take_tokens(sessions, logits)
    chosen[0] = sessions[0].token_ids[-1] = 77
    assert step(*sessions) == 1
    assert torch.isfinite(driver.engine.kv.keys[:, sessions[0].table[0], :, :3]).all()
