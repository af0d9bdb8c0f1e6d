"""A failed request is never a result (hazard 35). Every command that gives a figure refuses it and writes nothing."""

import re

import pytest

from rosecourse.commands import engines
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.verdict import Verdict
from tests.support.commands import ALL, lab
from tests.support.failing import cancels_one, sick_model

FEW = "--num-requests 3 --max-new-tokens 8 --max-batch-size 2"
COMMANDS = {
    "generate": "generate --prompt Hello --max-new-tokens 8",
    "scheduler": f"benchmark_scheduler {FEW}",
    "offline": f"benchmark_scheduler {FEW} --mode offline",
    "streaming": f"benchmark_streaming {FEW} --no-stop-on-eos",
    "transformers": "benchmark_transformers --batch-size 2 --max-new-tokens 8 --prompt-tokens 3",
}
OLD = b"what was there before"


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch, model):
    """Runs a command where a file lies already: exit code 2, nothing written, no figure; returns its one line.

    position: where the model that it loads makes NaN; None: the shipped one.
    """

    def run(command, position=None):
        chosen = model if position is None else sick_model(model, position)
        monkeypatch.setattr(engines, "model_of", lambda flags: chosen)
        (name, *argv), old = COMMANDS[command].split(), tmp_path / "old.json"
        old.write_bytes(OLD)
        assert ALL[name].main([*argv, "--json", str(old)]) == 2
        assert (list(tmp_path.iterdir()), old.read_bytes()) == ([old], OLD)
        out, err = capsys.readouterr()
        assert not re.search("tokens/s|TPOT", out)
        (line,) = err.splitlines()
        assert line.startswith(f"rosecourse {name}: error: ")
        assert line.endswith("such a run gives no figure")
        return line

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_command_when_logits_are_nan_refuses_by_name(refused, command):
    """Position 5 is behind a prompt of three tokens: three new ones come first. Position 0 is everyone's."""
    for position, made in ((5, 3), (0, 0)):
        line = refused(command, position)
        assert f"request 0 gave {made} of 8 tokens (error: its logits are NaN or infinite)" in line


@pytest.mark.parametrize("command", ["generate", "offline", "streaming"])
def test_command_when_a_request_is_cancelled_refuses(refused, monkeypatch, command):
    """A warm-up run counts like any other: no figure comes of a machine that loses requests."""
    at = 3 if command == "generate" else 21  # in a later run
    steps = cancels_one(monkeypatch, at)
    assert re.search(r"request \d gave \d of 8 tokens \(cancelled\)", refused(command))
    assert len(steps) >= at


def test_lab_when_requests_fail_measures_nothing(monkeypatch, capsys, model, tmp_path):
    """All engines fail alike, and so agree."""
    path = tmp_path / "part.py"
    path.write_text("from rosecourse.lessons import lesson\n\n\nclass Mine(lesson('038').after.kv_append):\n    pass\n")
    monkeypatch.setattr(checking, "check", lambda part, number: Verdict("Mine", "038", done=("it was tried",)))
    monkeypatch.setattr("rosecourse.models.load.load_model", lambda: sick_model(model, 30))
    assert lab.main([f"{path}:Mine", "--lesson", "038"]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert re.search(r"request 0 gave \d+ of \d+ tokens \(error: its logits are NaN", line)
    assert "Your part" not in captured.out
