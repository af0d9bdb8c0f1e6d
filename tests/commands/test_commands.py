"""The commands: what they print, and what they write."""

import json
import re

import numpy as np
import pytest

from rosecourse import LESSONS, lesson
from rosecourse.commands import engines
from rosecourse.commands.benchmark import READERS
from rosecourse.lessons.dense import DecodeForward as DenseForward
from tests.support.commands import ALL, benchmark_scheduler, benchmark_streaming, benchmark_transformers, generate
from tests.support.oracles import hf_greedy

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--warmup-runs", "0", "--repeat-runs", "2"]
STREAMED = [*SMALL, "--no-stop-on-eos", "--submit-interval-ms", "1"]
TRANSFORMERS = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "2"]


@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (benchmark_scheduler, ["Decode time", "Total time", "Admission wait", "TTFT", "TPOT", "Latency"]),
        (benchmark_streaming, ["Admission wait", "TTFT", "TPOT", "ITL", "Reader ITL", "Delay", "Latency"]),
    ],
)
def test_a_benchmark_prints_the_articles_figures(capsys, command, figures):
    assert command.main([*SMALL, "--no-stop-on-eos"]) == 0
    out = capsys.readouterr().out
    for figure in figures:
        assert re.search(rf"^{figure} p50(/mean|/p95/p99)?: \d+\.\d+", out, re.MULTILINE), figure
    assert re.search(r"^Throughput\(completion,total\) p50: \d+\.\d\d tokens/s$", out, re.MULTILINE)
    assert "N: 6 requests, 24 completion tokens, 0 preemptions\n" in out


def test_the_articles_command_lines_are_understood(capsys, tmp_path):
    """Every flag of the articles' commands, with a hub id replaced by a shape and sizes cut down."""
    common = ["--random-weights", "gpt2", "--device", "cpu", "--prompt", "Hello", "--pretok", "--no-stop-on-eos"]
    common += ["--no-prefix-cache", "--paged-attn", "--warmup-runs", "0", "--repeat-runs", "1"]
    sizes = ["--num-requests", "2", "--max-new-tokens", "2", "--max-batch-size", "2"]
    streaming = ["--tokenize-workers", "0", "--submit-interval-ms", "0", "--prefill-max-batch-size", "2"]
    streaming += ["--prefill-admission-policy", "fifo"]
    assert benchmark_scheduler.main([*common, *sizes, "--mode", "online"]) == 0
    assert "random gpt2" in capsys.readouterr().out
    assert benchmark_streaming.main([*common, *sizes, *streaming]) == 0
    assert "N: 2 requests, 4 completion tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--mode", "offline"],
        ["--lesson", "035", "--block-size", "4", "--dense", "--dtype", "bfloat16"],
        ["--tokenize-workers", "2", "--prefill-max-batch-size", "1", "--max-batch-size", "2"],
        ["--num-blocks", "1", "--max-batch-size", "3", "--no-prefix-cache"],
    ],
    ids=" ".join,
)
def test_flags_that_change_the_engine(capsys, flags):
    assert benchmark_scheduler.main([*SMALL, *flags]) == 0
    assert "6 requests" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["benchmark_scheduler", "benchmark_streaming"])
def test_json_has_command_provenance_and_every_sample(name, tmp_path, capsys):
    file = tmp_path / "out.json"
    argv = [*SMALL, "--no-stop-on-eos", "--json", str(file)]
    assert ALL[name].main(argv) == 0
    found = json.loads(file.read_text())
    assert found["command"].startswith(f"rosecourse {name} --num-requests 3 --max-new-tokens 4")
    assert (name == "benchmark_streaming") == ("readers" in found["settings"])
    assert {"commit", "dirty", "host", "versions", "settings", "units", "runs"} <= set(found)
    assert found["versions"]["torch"]
    assert found["settings"]["lesson"] == LESSONS[-1].number
    assert found["settings"]["max_seq_len"] >= 5
    assert [[len(r["tokens"]) for r in run["requests"]] for run in found["runs"]] == [[4] * 3] * 2
    assert all(r["submitted"] <= r["admitted"] <= r["tokens"][0] for run in found["runs"] for r in run["requests"])
    assert list(tmp_path.iterdir()) == [file]


def test_generate_writes_what_transformers_would(capsys, model, hf_model, tmp_path):
    file = tmp_path / "out.json"
    argv = ["--prompt", "It is a truth", "--max-new-tokens", "30", "--device", "cpu", "--no-stop-on-eos"]
    assert generate.main([*argv, "--json", str(file)]) == 0
    expected = hf_greedy(hf_model, [model.tokenizer.encode("It is a truth")], 30)[0]
    assert capsys.readouterr().out == f"It is a truth{model.tokenizer.decode(expected)}\n"
    found = json.loads(file.read_text())
    assert found["token_ids"] == expected
    assert found["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("generate", ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "2"]),
        ("benchmark_transformers", [*TRANSFORMERS, "--pairs", "2"]),
        ("benchmark_scheduler", SMALL),
        ("benchmark_streaming", SMALL),
    ],
)
def test_attention_is_paged_unless_dense_is_asked_for(name, argv, monkeypatch):
    built, parts_of = [], engines.parts_of
    monkeypatch.setattr(engines, "parts_of", lambda flags: built.append(parts_of(flags)) or built[-1])
    for flags in ([], ["--lesson", "061", "--paged-attn"], ["--lesson", "061", "--dense"]):
        assert ALL[name].main([*argv, *flags]) == 0
        rung = lesson("061" if flags else "best")
        assert built.pop().forward is (DenseForward if "--dense" in flags else rung.after.forward)


def test_generate_writes_several_samples(capsys, model, tmp_path):
    """Sample i is what the command writes with seed + i; the file has them all."""
    file = tmp_path / "out.json"
    argv = ["--prompt", "Emma", "--max-new-tokens", "12", "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
    argv += ["--device", "cpu"]
    assert generate.main([*argv, "--seed", "4", "--samples", "3", "--json", str(file)]) == 0
    found, expected = capsys.readouterr().out, ""
    for number in range(3):
        assert generate.main([*argv, "--seed", str(4 + number)]) == 0
        expected += f"=== sample {number}, seed {4 + number} ===\n{capsys.readouterr().out}"
    assert found == expected
    samples = json.loads(file.read_text())["samples"]
    assert [sample["seed"] for sample in samples] == [4, 5, 6]
    assert len({sample["text"] for sample in samples}) > 1
    assert ["Emma" + model.tokenizer.decode(sample["token_ids"]) for sample in samples] == [
        "Emma" + sample["text"] for sample in samples
    ]
    assert all(sample["text"] in found and sample["finish_reason"] == "length" for sample in samples)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_benchmark_scheduler_measures_samples(mode, capsys, tmp_path):
    """Each counts as a request, with times of its own."""
    file = tmp_path / "out.json"
    argv = [*SMALL, "--mode", mode, "--samples", "5", "--no-stop-on-eos", "--json", str(file)]
    assert benchmark_scheduler.main(argv) == 0
    assert "N: 30 requests, 120 completion tokens, 0 preemptions" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert "--samples 5" in found["command"]
    for run in found["runs"]:
        firsts = [request["tokens"][0] for request in run["requests"]]
        assert [firsts[n : n + 5] for n in (0, 5, 10)] == [[firsts[n]] * 5 for n in (0, 5, 10)]  # one prefill


# -- beside transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "kind"), [([], "paged"), (["--dense", "--static-cache"], "gathered dense")])
def test_benchmark_transformers_compares_the_same_tokens(capsys, tmp_path, flags, kind):
    file = tmp_path / "out.json"
    argv = [*TRANSFORMERS, "--pairs", "2", "--lesson", "036", "--json", str(file), *flags]
    assert benchmark_transformers.main(argv) == 0
    out = capsys.readouterr().out
    assert f"({'static' if flags else 'dynamic'} cache)" in out
    assert "Same tokens: yes, 4 of them, greedy" in out
    assert f"Lesson: 036, block-table cache; attention over {kind} K and V\n" in out
    assert "over 2 interleaved pairs: too few pairs to tell, take 5 or more" in out
    found = json.loads(file.read_text())
    assert found["command"].startswith("rosecourse benchmark_transformers --batch-size 2")
    assert found["same_tokens"] is True
    assert len(found["transformers_seconds"]) == len(found["engine_seconds"]) == 2


def test_other_tokens_end_the_comparison(capsys, monkeypatch):
    monkeypatch.setattr("rosecourse.measure.rivals.transformers_completions", lambda *_: [[1]])
    assert benchmark_transformers.main(TRANSFORMERS) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the tokens differ" in captured.err


# -- readers of streams ---------------------------------------------------------------------------------------------


def line(out, name):
    """The three percentiles that a summary gives of this, in milliseconds."""
    (found,) = re.findall(rf"^{name} p50/p95/p99: (\S+) ms$", out, re.MULTILINE)
    return [float(value) for value in found.split("/")]


@pytest.mark.parametrize("way", READERS)
def test_the_summary_has_both_latencies_and_the_document_every_time(tmp_path, capsys, way):
    file = tmp_path / "x.json"
    assert benchmark_streaming.main([*STREAMED, "--readers", way, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"=== streaming, readers: {way} summary ===" in out
    document = json.loads(file.read_text())
    assert document["settings"]["readers"] == way
    assert (f"--readers {way}" in document["command"]) == (way != "sequential")
    assert "read" in document["units"]
    requests = [request for run in document["runs"] for request in run["requests"]]
    assert [len(request["read"]) for request in requests] == [4] * 6
    gaps, delays = [], []
    for run in document["runs"]:
        gaps.append(np.concatenate([np.diff(request["read"]) for request in run["requests"]]))
        delays.append(np.concatenate([np.subtract(request["read"], request["tokens"]) for request in run["requests"]]))
        assert min(delays[-1]) >= 0
    for name, runs in (("Reader ITL", gaps), ("Delay", delays)):  # of each run, and then the median over the runs
        expected = 1e3 * np.median([np.percentile(seconds, [50, 95, 99]) for seconds in runs], axis=0)
        assert line(out, name) == pytest.approx(expected, abs=0.01)
    assert line(out, "ITL") != line(out, "Reader ITL")


def test_one_token_has_a_delay_and_no_latency_between_tokens(capsys):
    assert benchmark_streaming.main([*STREAMED, "--max-new-tokens", "1", "--readers", "one"]) == 0
    out = capsys.readouterr().out
    assert "\nITL p50/p95/p99: n/a ms\nReader ITL p50/p95/p99: n/a ms\n" in out
    assert min(line(out, "Delay")) > 0
