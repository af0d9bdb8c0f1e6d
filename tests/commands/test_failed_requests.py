"""A failed request is never a result (hazard 35). Every command that gives a figure refuses it and writes nothing."""

import re

import pytest
from safetensors.torch import load_file, save_file

from rosecourse import ConfigError
from rosecourse.commands import doctor, engines
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.verdict import Verdict
from tests.support.commands import benchmark_scheduler, benchmark_streaming, benchmark_transformers, generate, lab
from tests.support.failing import cancels_one, sick_model

FEW = ["--num-requests", "3", "--max-new-tokens", "8", "--max-batch-size", "2"]
COMMANDS = {
    "generate": (generate, ["--prompt", "Hello", "--max-new-tokens", "8"]),
    "scheduler": (benchmark_scheduler, FEW),
    "offline": (benchmark_scheduler, [*FEW, "--mode", "offline"]),
    "streaming": (benchmark_streaming, [*FEW, "--no-stop-on-eos"]),
    "transformers": (benchmark_transformers, ["--batch-size", "2", "--max-new-tokens", "8", "--prompt-tokens", "3"]),
}
BY_COMMAND = pytest.mark.parametrize("command", COMMANDS)
OLD = b"what was there before"


def written(folder):
    """What lies in a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def loads(monkeypatch, model):
    """Makes the commands load a model that makes NaN at a position; None: the shipped one."""

    def choose(position):
        chosen = model if position is None else sick_model(model, position)
        monkeypatch.setattr(engines, "model_of", lambda flags: chosen)

    return choose


def refused(capsys, tmp_path, command):
    """Run a command where a file lies already: exit code 2, nothing written, no figure; returns its one line."""
    module, argv = COMMANDS[command]
    old = tmp_path / "old.json"
    old.write_bytes(OLD)
    assert module.main([*argv, "--json", str(old)]) == 2
    assert written(tmp_path) == {"old.json": OLD}
    captured = capsys.readouterr()
    assert "tokens/s" not in captured.out
    assert "TPOT" not in captured.out
    (line,) = captured.err.splitlines()
    assert re.match(r"rosecourse \w+: error: ", line)
    return line


@BY_COMMAND
@pytest.mark.parametrize("position", [5, 0], ids=["later", "from the first token"])
def test_nan_is_refused_by_name(loads, capsys, tmp_path, command, position):
    """Hazard 35. Position 5 is behind a prompt of three tokens: three new ones come first. Position 0 is everyone's."""
    loads(position)
    line = refused(capsys, tmp_path, command)
    assert f"request 0 gave {3 if position else 0} of 8 tokens (error: its logits are NaN or infinite)" in line
    assert line.endswith("such a run gives no figure")


@pytest.mark.parametrize("command", ["generate", "offline", "streaming"])
def test_a_cancelled_request_is_refused_by_name(loads, capsys, tmp_path, monkeypatch, command):
    """A warm-up run counts like any other: no figure comes of a machine that loses requests."""
    at = 3 if command == "generate" else 21  # in a later run
    loads(None)
    steps = cancels_one(monkeypatch, at)
    line = refused(capsys, tmp_path, command)
    assert len(steps) >= at
    assert re.search(r"request \d gave \d of 8 tokens \(cancelled\)", line)
    assert line.endswith("such a run gives no figure")


def test_a_model_whose_finite_weights_overflow_is_refused_too(tmp_path, capsys, hf_model, model):
    """The weights pass when they are read: only the numbers that come of them are NaN."""
    folder = tmp_path / "model"
    hf_model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    weights = folder / "model.safetensors"
    state = load_file(weights)
    state["transformer.wpe.weight"][5] = 3e38
    save_file(state, weights, metadata={"format": "pt"})
    before = written(tmp_path)
    argv = [*FEW, "--device", "cpu", "--hf-model-id", str(folder), "--json", str(tmp_path / "new.json")]
    assert benchmark_scheduler.main(argv) == 2
    assert "request 0 gave 3 of 8 tokens (error: its logits are NaN or infinite)" in capsys.readouterr().err
    assert written(tmp_path) == before


def test_the_lab_measures_nothing_over_failed_requests(monkeypatch, capsys, model, tmp_path):
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


def test_doctor_finds_a_model_that_makes_nan(monkeypatch, model):
    monkeypatch.setattr("rosecourse.load_model", lambda: sick_model(model, 0), raising=False)
    with pytest.raises(ConfigError, match="the shipped model makes NaN"):
        doctor.check_model()
