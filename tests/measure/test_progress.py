"""Progress is shown to somebody who watches, after two seconds, and leaves nothing behind."""

import io
import sys
from types import SimpleNamespace

import pytest
import tqdm.std

from rosecourse.measure.progress import progress
from rosecourse.measure.stats import interleave_all
from rosecourse.pages.shell import watched_shell


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def watched(monkeypatch):
    """Begins a run that a terminal, a notebook or nobody watches: what is written, what is cleared, and the clock."""
    clock = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(tqdm.std, "time", lambda: clock.seconds)

    def begin(by):
        stream, cleared = Stream(by == "terminal"), []
        kernel = SimpleNamespace(get_parent=lambda channel: {"content": {"allow_stdin": by == "notebook"}})
        display = SimpleNamespace(clear_output=lambda: cleared.append("output"))
        shell = SimpleNamespace(kernel=kernel, display_pub=display) if by in ("notebook", "program") else None
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        assert (watched_shell() is not None) == (by == "notebook")
        return stream, cleared, clock

    return begin


@pytest.mark.parametrize("by", ["terminal", "notebook", "program", "nobody"])
@pytest.mark.parametrize("each", [1.0, 0.3])
def test_a_bar_is_shown_to_who_watches_slow_work(watched, by, each):
    stream, cleared, clock = watched(by)
    shown = []

    def work():
        with progress("runs", 5) as advance:
            for _ in range(5):
                clock.seconds += each
                shown.append(stream.getvalue())
                advance()
            raise KeyboardInterrupt  # it goes then, too

    with pytest.raises(KeyboardInterrupt):
        work()
    if each == 1.0 and by in ("terminal", "notebook"):
        assert shown[:2] == ["", ""]
        assert ("runs:  40%" in shown[2], "runs:  80%" in shown[4]) == (True, True)
        assert stream.getvalue().split("\r")[-2].strip() == ""  # blanks over the last bar
        assert cleared == ["output"] * (by == "notebook")
    else:
        assert (stream.getvalue(), cleared) == ("", [])


def test_a_bar_moves_between_interleaved_runs(watched):
    stream, _, clock = watched("terminal")
    drawn = []

    def work():
        before = stream.getvalue()
        clock.seconds += 3
        assert stream.getvalue() == before
        drawn.append(before)

    interleave_all([work, work], rounds=1)
    assert ("runs:  25%" in drawn[1], "runs:  75%" in drawn[3]) == (True, True)
