"""A sentence is a paragraph: escaped, whole without styles, and broken between words where it is plain text."""

from types import SimpleNamespace

import pytest

from rosecourse.pages import say as module
from rosecourse.pages.say import COLUMNS, say
from tests.support.stripped import stripped

LONG = "The floor of a step is 0.20 ms, " + "and so on " * 30 + "`rosecourse record --random-weights gpt2` well-known."


@pytest.fixture
def published(monkeypatch):
    """What a kernel's shell is given to display."""
    found = []
    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=found.append))
    monkeypatch.setattr(module, "kernels_shell", lambda: shell)
    return found


def test_a_notebook_gets_one_paragraph_a_call(published, capsys):
    say("Workload A:", 1.5, "times as fast,\n    as **recorded** by `rosecourse record`.")
    say("Another.")
    say('<img src=x onerror="alert(1)"> & `a<b`', "</p><script>")
    say("", " ")  # no empty paragraph
    first, second, escaped = published
    assert stripped(escaped["text/html"]).get_text() == '<img src=x onerror="alert(1)"> & a<b </p><script>'
    assert "<img" not in escaped["text/html"]
    assert "<script" not in escaped["text/html"]
    page = stripped(first["text/html"])
    assert [tag.name for tag in page.find_all(True)] == ["p", "b", "code"]
    assert page.get_text() == "Workload A: 1.5 times as fast, as recorded by rosecourse record."
    assert first["text/plain"] == "Workload A: 1.5 times as fast, as **recorded** by `rosecourse record`."
    assert second == {"text/html": "<p>Another.</p>", "text/plain": "Another."}
    assert not capsys.readouterr().out


def test_text_elsewhere_is_printed_and_broken_between_words(capsys):
    say(LONG)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= COLUMNS
    assert [word for line in lines for word in line.split(" ")] == LONG.split()
