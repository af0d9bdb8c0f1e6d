"""Progress is shown to somebody who watches, after two seconds, and leaves nothing behind."""

import io
import sys
from types import SimpleNamespace

import pytest
import tqdm.std

from rosecourse.measure.progress import progress
from rosecourse.measure.stats import interleave_all
from rosecourse.pages.shell import watched_shell


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """tqdm's clock: it stands still until the work moves it."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(tqdm.std, "time", lambda: now.seconds)
    return now


def shown_on(stream, monkeypatch, clock, each=1.0):
    """What a bar over five pieces of work writes, after each of them and at the end."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    written = []
    with progress("runs", 5) as advance:
        for _ in range(5):
            clock.seconds += each
            written.append(stream.getvalue())
            advance()
    return [*written, stream.getvalue()]


def notebook(monkeypatch, allow_stdin):
    """A kernel whose cell may ask somebody, or may not; returns what it is asked to clear."""
    cleared = []
    shell = SimpleNamespace(
        kernel=SimpleNamespace(get_parent=lambda channel: {"content": {"allow_stdin": allow_stdin}}),
        display_pub=SimpleNamespace(clear_output=lambda: cleared.append("output")),
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    return cleared


def test_on_a_terminal_it_appears_after_two_seconds_and_goes(monkeypatch, clock):
    *during, after = shown_on(Terminal(), monkeypatch, clock)
    assert during[:2] == ["", ""]
    assert "runs:  40%" in during[2]
    assert "runs:  80%" in during[4]
    assert after.split("\r")[-2].strip() == after.split("\r")[-1] == ""  # blanks over the last bar
    assert shown_on(Terminal(), monkeypatch, clock, each=0.3)[-1] == ""  # quick work
    assert shown_on(io.StringIO(), monkeypatch, clock)[-1] == ""  # where nobody watches


def test_in_a_notebook_the_output_is_cleared_if_a_bar_was_shown(monkeypatch, clock):
    for allow_stdin, each, is_shown in ((True, 1.0, True), (True, 0.3, False), (False, 1.0, False)):
        cleared = notebook(monkeypatch, allow_stdin)
        shown = shown_on(io.StringIO(), monkeypatch, clock, each)
        assert ("runs:  40%" in shown[2]) == is_shown == (shown[-1] != "")
        assert cleared == ["output"] * is_shown
        assert (watched_shell() is not None) == allow_stdin
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # without a kernel
    assert watched_shell() is None
    assert shown_on(io.StringIO(), monkeypatch, clock)[-1] == ""


def test_interleaved_runs_show_their_progress_between_the_runs(monkeypatch, clock):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    before_and_after = []

    def work():
        before = stream.getvalue()
        clock.seconds += 3
        before_and_after.append((before, stream.getvalue()))

    interleave_all([work, work], rounds=1)
    assert all(before == after for before, after in before_and_after)
    assert "runs:  25%" in before_and_after[1][0]
    assert "runs:  75%" in before_and_after[3][0]
