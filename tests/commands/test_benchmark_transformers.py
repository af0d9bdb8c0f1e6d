"""benchmark_transformers: the same tokens, the attention that ran, and bad calls."""

import json

import pytest

from tests.support.commands import benchmark_transformers

SMALL = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "4", "--pairs", "2"]


@pytest.mark.parametrize(("flags", "kind"), [([], "paged"), (["--dense"], "gathered dense")])
def test_benchmark_transformers_says_which_attention_it_was(capsys, flags, kind):
    assert benchmark_transformers.main([*SMALL, "--lesson", "036", *flags]) == 0
    assert f"Lesson: 036, block-table cache; attention over {kind} K and V\n" in capsys.readouterr().out


def test_benchmark_transformers(capsys, tmp_path):
    file = tmp_path / "out.json"
    assert benchmark_transformers.main([*SMALL, "--lesson", "035", "--json", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "Same tokens: yes, 8 of them, greedy"
    assert out[3].startswith("rosecourse 035 p50: ")
    assert out[4].startswith("Ratio: ")
    found = json.loads(file.read_text())
    assert found["command"].startswith("rosecourse benchmark_transformers --batch-size 2")
    assert found["same_tokens"] is True
    assert len(found["transformers_seconds"]) == len(found["engine_seconds"]) == 2


def test_other_tokens_end_the_comparison(capsys, monkeypatch):
    monkeypatch.setattr("rosecourse.measure.rivals.transformers_completions", lambda *_: [[1]])
    assert benchmark_transformers.main(SMALL) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the tokens differ" in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pairs", "1"], "1 is not in the range 2<=x"),
        (["--prompt-tokens", "0"], "0 is not in the range 1<=x"),
        (["--batch-size", "0"], "0 is not in the range 1<=x"),
        (["--max-new-tokens", "600"], "max_new_tokens is 600"),
    ],
)
def test_bad_calls(capsys, flags, message):
    assert benchmark_transformers.main([*SMALL, *flags]) == 2
    assert message in capsys.readouterr().err
