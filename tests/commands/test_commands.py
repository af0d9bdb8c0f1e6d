"""The commands: what they print, and what they write."""

import json
import re
import subprocess
import sys

import pytest

from rosecourse import LESSONS, lesson
from rosecourse.commands import engines
from rosecourse.lessons.dense import DecodeForward as DenseForward
from tests.support.commands import COMMANDS, benchmark_scheduler, benchmark_streaming, benchmark_transformers, generate
from tests.support.oracles import hf_greedy

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--warmup-runs", "0", "--repeat-runs", "2"]
TRANSFORMERS = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "2"]
SECONDS, RATE = r"\d+\.\d{6} s", r"\d+\.\d\d tokens/s"
TWO, THREE = r"\d+\.\d\d/\d+\.\d\d", r"\d+\.\d\d/\d+\.\d\d/\d+\.\d\d"
SCHEDULER_LINES = [
    r"=== online summary ===",
    r"Warmup runs: 0",
    r"Measured runs: 2",
    rf"Decode time p50: {SECONDS}",
    rf"Total time p50: {SECONDS}",
    rf"Throughput\(completion,decode\) p50: {RATE}",
    rf"Throughput\(completion,total\) p50: {RATE}",
    rf"Admission wait p50/mean: {TWO} ms",
    rf"TTFT p50/mean: {TWO} ms",
    rf"TPOT p50/mean: {TWO} ms/token",
    rf"Latency p50/mean: {TWO} ms",
    r"N: 6 requests, 24 completion tokens, 0 preemptions",
    r"Lesson: \d+, .*; attention over (paged|gathered dense) K and V",
    r"On: .*float32, torch .*",
]
STREAMING_LINES = [
    r"=== streaming, readers: sequential summary ===",
    r"Warmup runs: 0",
    r"Measured runs: 2",
    rf"Admission wait p50/p95/p99: {THREE} ms",
    rf"TTFT p50/p95/p99: {THREE} ms",
    rf"TPOT p50/p95/p99: {THREE} ms/token",
    rf"ITL p50/p95/p99: {THREE} ms",
    rf"Reader ITL p50/p95/p99: {THREE} ms",
    rf"Delay p50/p95/p99: {THREE} ms",
    rf"Latency p50/p95/p99: {THREE} ms",
    rf"Throughput\(completion,total\) p50: {RATE}",
    r"N: 6 requests, 24 completion tokens, 0 preemptions",
    r"Lesson: \d+, .*; attention over (paged|gathered dense) K and V",
    r"On: .*float32, torch .*",
]


def assert_lines(text, patterns):
    lines = text.strip().splitlines()
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize("attention", [[], ["--paged-attn"], ["--dense", "--lesson", "061"]])
def test_benchmark_scheduler_prints_the_articles_lines(capsys, attention):
    assert benchmark_scheduler.main([*SMALL, "--no-stop-on-eos", *attention]) == 0
    assert_lines(capsys.readouterr().out, SCHEDULER_LINES)


def test_benchmark_streaming_prints_the_articles_lines(capsys):
    assert benchmark_streaming.main([*SMALL, "--no-stop-on-eos"]) == 0
    assert_lines(capsys.readouterr().out, STREAMING_LINES)


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
        ["--lesson", "035", "--block-size", "4", "--dtype", "bfloat16"],
        ["--lesson", "035", "--block-size", "4", "--dense", "--dtype", "bfloat16"],
        ["--tokenize-workers", "2", "--prefill-max-batch-size", "1", "--max-batch-size", "2"],
        ["--num-blocks", "1", "--max-batch-size", "3", "--no-prefix-cache"],
        ["--max-new-tokens", "1"],
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
    assert COMMANDS[name].main(argv) == 0
    found = json.loads(file.read_text())
    assert found["command"].startswith(f"rosecourse {name} --num-requests 3 --max-new-tokens 4")
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


def forwards(monkeypatch):
    """The forward parts of the engines that commands build from now on."""
    built, parts_of = [], engines.parts_of

    def noted(flags):
        parts = parts_of(flags)
        built.append(parts.forward)
        return parts

    monkeypatch.setattr(engines, "parts_of", noted)
    return built


@pytest.mark.parametrize("name", [*COMMANDS, "benchmark_transformers"])
def test_attention_is_paged_unless_dense_is_asked_for(name, capsys, monkeypatch):
    """Whatever the lesson that can do both."""
    calls = {
        "generate": (generate, ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "2"]),
        "benchmark_transformers": (benchmark_transformers, [*TRANSFORMERS, "--pairs", "2"]),
        "benchmark_scheduler": (benchmark_scheduler, SMALL),
        "benchmark_streaming": (benchmark_streaming, SMALL),
    }
    command, argv = calls[name]
    built = forwards(monkeypatch)
    for number in ("035", "061", "best"):
        for flags in ([], ["--paged-attn"], *([["--dense"]] if number != "best" else [])):
            assert command.main([*argv, "--lesson", number, *flags]) == 0
            assert built.pop() is (DenseForward if "--dense" in flags else lesson(number).after.forward)


def test_dense_attention_writes_the_same_tokens(capsys):
    argv = ["--prompt", "It is a truth", "--max-new-tokens", "30", "--device", "cpu"]
    texts = []
    for flags in ([], ["--lesson", "061"], ["--lesson", "061", "--dense"]):
        assert generate.main([*argv, *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]


def test_generate_samples_the_same_for_a_seed(capsys):
    texts = []
    for seed in ("1", "1", "2"):
        argv = ["--prompt", "Emma", "--max-new-tokens", "20", "--temperature", "1", "--top-p", "0.9", "--top-k", "50"]
        assert generate.main([*argv, "--seed", seed, "--device", "cpu"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_generate_writes_several_samples(capsys, model, tmp_path):
    """Sample i is what the command writes with seed + i; the file has them all."""
    file = tmp_path / "out.json"
    argv = ["--prompt", "Emma", "--max-new-tokens", "12", "--temperature", "1", "--device", "cpu"]
    assert generate.main([*argv, "--seed", "4", "--samples", "3", "--json", str(file)]) == 0
    found, expected = capsys.readouterr().out, ""
    for number in range(3):
        assert generate.main([*argv, "--seed", str(4 + number)]) == 0
        expected += f"=== sample {number}, seed {4 + number} ===\n{capsys.readouterr().out}"
    assert found == expected
    samples = json.loads(file.read_text())["samples"]
    assert [sample["seed"] for sample in samples] == [4, 5, 6]
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


def test_as_a_user_would_run_it():
    """In a process of its own: English on standard output, nothing on standard error."""
    argv = [
        sys.executable,
        "-m",
        "rosecourse",
        "generate",
        "--prompt",
        "-",
        "--max-new-tokens",
        "20",
        "--device",
        "cpu",
    ]
    done = subprocess.run(argv, input="My dear", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("My dear")
    assert len(done.stdout.split()) > 8
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_flag(name, capsys):
    assert COMMANDS[name].main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: rosecourse {name}")
    assert "--json FILE" in out
