"""The commands: what they print, and what they write."""

import json
import re

import numpy as np
import pytest
import torch

from rosecourse import LESSONS
from rosecourse.commands.benchmark import READERS
from tests.support.commands import ALL, benchmark_scheduler, benchmark_streaming, benchmark_transformers, generate
from tests.support.oracles import hf_greedy

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--warmup-runs", "0", "--repeat-runs", "2"]
STREAMED = [*SMALL, "--no-stop-on-eos", "--submit-interval-ms", "1"]
TRANSFORMERS = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "2"]
HELLO = ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "3"]


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("benchmark_scheduler", ["Decode time", "Total time", "Admission wait", "TTFT", "TPOT", "Latency"]),
        ("benchmark_streaming", ["Admission wait", "TTFT", "TPOT", "ITL", "Reader ITL", "Delay", "Latency"]),
    ],
)
def test_benchmark_gives_figures_and_writes_every_sample(capsys, tmp_path, name, figures):
    file = tmp_path / "out.json"
    assert ALL[name].main([*SMALL, "--warmup-runs", "1", "--no-stop-on-eos", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    for figure in (*figures, r"Throughput\(completion,total\)"):
        assert re.search(rf"^{figure} p50(/mean|/p95/p99)?: \d+\.\d+", out, re.MULTILINE), figure
    assert "N: 6 requests, 24 completion tokens, 0 preemptions\n" in out
    found = json.loads(file.read_text())
    assert found["command"].startswith(f"rosecourse {name} --num-requests 3 --max-new-tokens 4")
    assert {"commit", "dirty", "host", "versions", "settings", "units", "runs"} <= set(found)
    assert found["versions"]["torch"]
    assert found["settings"]["lesson"] == LESSONS[-1].number
    assert found["settings"]["max_seq_len"] >= 5
    assert [[len(r["tokens"]) for r in run["requests"]] for run in found["runs"]] == [[4] * 3] * 2
    assert all(r["submitted"] <= r["admitted"] <= r["tokens"][0] for run in found["runs"] for r in run["requests"])
    assert list(tmp_path.iterdir()) == [file]


# Every flag of the articles' command lines, with a hub id replaced by a shape, and then what else changes the engine.
ARTICLES = "--random-weights gpt2 --prompt Hello --pretok --no-stop-on-eos --no-prefix-cache --paged-attn"
ARTICLES += " --num-requests 2 --max-new-tokens 2 --max-batch-size 2 --repeat-runs 1"
STREAMING = "--tokenize-workers 0 --submit-interval-ms 0 --prefill-max-batch-size 2 --prefill-admission-policy fifo"


@pytest.mark.parametrize(
    ("name", "flags", "words"),
    [
        ("benchmark_scheduler", f"{ARTICLES} --mode online", "random gpt2"),
        ("benchmark_streaming", f"{ARTICLES} {STREAMING}", "N: 2 requests, 4 completion tokens"),
        ("benchmark_scheduler", "--mode offline", "6 requests"),
        ("benchmark_scheduler", "--lesson 035 --block-size 4 --dense --dtype bfloat16", "6 requests"),
        ("benchmark_streaming", "--tokenize-workers 2 --prefill-max-batch-size 1 --max-batch-size 2", "6 requests"),
        ("benchmark_scheduler", "--num-blocks 1 --max-batch-size 3 --no-prefix-cache", "6 requests"),
        ("benchmark_scheduler", f"--max-batch-size {10**9}", "6 requests"),  # no more memory than the work needs
    ],
)
def test_benchmark_when_flags_change_the_engine_runs(capsys, name, flags, words):
    assert ALL[name].main([*SMALL, *flags.split()]) == 0
    assert words in capsys.readouterr().out


def test_generate_writes_what_transformers_would(capsys, model, hf_model, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to("folder/real.json")
    argv = ["--prompt", "It is a truth", "--max-new-tokens", "30", "--device", "cpu", "--no-stop-on-eos"]
    assert generate.main([*argv, "--json", str(tmp_path / "link.json")]) == 0
    expected = hf_greedy(hf_model, [model.tokenizer.encode("It is a truth")], 30)[0]
    assert capsys.readouterr().out == f"It is a truth{model.tokenizer.decode(expected)}\n"
    assert (tmp_path / "link.json").is_symlink()
    found = json.loads((tmp_path / "folder" / "real.json").read_text())
    assert found["command"].startswith("rosecourse generate --prompt 'It is a truth'")
    assert found["token_ids"] == expected
    assert found["finish_reason"] == "length"


def test_generate_when_samples_are_several_counts_seeds_up(capsys, tmp_path):
    file = tmp_path / "out.json"
    argv = [*HELLO, "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
    assert generate.main([*argv, "--seed", "4", "--samples", "3", "--json", str(file)]) == 0
    found, expected = capsys.readouterr().out, ""
    for number in range(3):
        assert generate.main([*argv, "--seed", str(4 + number)]) == 0
        expected += f"=== sample {number}, seed {4 + number} ===\n{capsys.readouterr().out}"
    assert found == expected
    samples = json.loads(file.read_text())["samples"]
    assert [sample["seed"] for sample in samples] == [4, 5, 6]
    assert len({sample["text"] for sample in samples}) > 1
    assert all(sample["text"] in found and sample["finish_reason"] == "length" for sample in samples)


@pytest.mark.parametrize(("flags", "expected"), [([], 1), (["--threads", "2"], 2)])
def test_threads_are_one_for_a_small_model_unless_told(flags, expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert generate.main([*HELLO, *flags]) == 0
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_benchmark_scheduler_counts_samples_as_requests(mode, capsys, tmp_path):
    file = tmp_path / "out.json"
    argv = [*SMALL, "--mode", mode, "--samples", "5", "--no-stop-on-eos", "--json", str(file)]
    assert benchmark_scheduler.main(argv) == 0
    assert "N: 30 requests, 120 completion tokens, 0 preemptions" in capsys.readouterr().out
    for run in json.loads(file.read_text())["runs"]:
        firsts = [request["tokens"][0] for request in run["requests"]]
        assert [firsts[n : n + 5] for n in (0, 5, 10)] == [[firsts[n]] * 5 for n in (0, 5, 10)]  # one prefill


@pytest.mark.parametrize(("flags", "kind"), [([], "paged"), (["--dense", "--static-cache"], "gathered dense")])
def test_benchmark_transformers_compares_the_same_tokens(capsys, tmp_path, flags, kind):
    file = tmp_path / "out.json"
    argv = [*TRANSFORMERS, "--pairs", "2", "--lesson", "036", "--json", str(file), *flags]
    assert benchmark_transformers.main(argv) == 0
    out = capsys.readouterr().out
    cache = "static" if flags else "dynamic"
    for words in (f"({cache} cache)", "yes, 4 of them", "Lesson: 036, ", f"over {kind} K and V", "take 5 or more"):
        assert words in out
    found = json.loads(file.read_text())
    assert found["command"].startswith("rosecourse benchmark_transformers --batch-size 2")
    assert found["same_tokens"] is True
    assert len(found["transformers_seconds"]) == len(found["engine_seconds"]) == 2


def test_benchmark_transformers_when_tokens_differ_refuses(capsys, monkeypatch):
    monkeypatch.setattr("rosecourse.measure.rivals.transformers_completions", lambda *_: [[1]])
    assert benchmark_transformers.main(TRANSFORMERS) == 2
    out, err = capsys.readouterr()
    assert (out, "the tokens differ" in err) == ("", True)


# -- readers of streams ---------------------------------------------------------------------------------------------


def line(out, name):
    """The three percentiles that a summary gives of this, in milliseconds."""
    (found,) = re.findall(rf"^{name} p50/p95/p99: (\S+) ms$", out, re.MULTILINE)
    return [float(value) for value in found.split("/")]


@pytest.mark.parametrize("way", READERS)
def test_readers_latencies_are_those_of_the_times_written(tmp_path, capsys, way):
    file = tmp_path / "x.json"
    assert benchmark_streaming.main([*STREAMED, "--readers", way, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"=== streaming, readers: {way} summary ===" in out
    document = json.loads(file.read_text())
    assert (f"--readers {way}" in document["command"]) == (way != "sequential")
    gaps, delays = [], []
    for run in document["runs"]:
        assert [len(request["read"]) for request in run["requests"]] == [4] * 3
        gaps.append(np.concatenate([np.diff(request["read"]) for request in run["requests"]]))
        delays.append(np.concatenate([np.subtract(request["read"], request["tokens"]) for request in run["requests"]]))
        assert min(delays[-1]) >= 0
    for name, runs in (("Reader ITL", gaps), ("Delay", delays)):  # of each run, and then the median over the runs
        expected = 1e3 * np.median([np.percentile(seconds, [50, 95, 99]) for seconds in runs], axis=0)
        assert line(out, name) == pytest.approx(expected, abs=0.01)
    assert line(out, "ITL") != line(out, "Reader ITL")
