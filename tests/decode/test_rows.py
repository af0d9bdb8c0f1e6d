"""Rows that stay: a step uploads what has changed and no more. That rows are right, `hazards.check_rows` looks at."""

import pytest

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
    rows = driver.engine.decode_step.rows
    assert rows.holds([a, b, c, fork])
    assert not any(rows.holds(others) for others in ([b, a, c, fork], [a, b, c], [a, b, c, driver.fork(b)], []))
    rows.forget()
    assert not rows.holds([a, b, c, fork])
    assert step(c, b) == 2 * joins + len(b.table) + len(c.table)
