"""What the benchmarks write and print about themselves: nothing of the machine's own, nothing undefined."""

import getpass
import json
import platform
import shlex
import shutil
import subprocess

import pytest

from rosecourse import lesson
from rosecourse.measure import metrics
from rosecourse.measure import provenance as report
from rosecourse.models.load import SHIPPED_MODEL
from tests.support.commands import benchmark_scheduler, benchmark_streaming, generate

SMALL = ["--device", "cpu", "--num-requests", "2", "--max-new-tokens", "3", "--warmup-runs", "0", "--repeat-runs", "1"]
BENCHMARKS = {"benchmark_scheduler": benchmark_scheduler, "benchmark_streaming": benchmark_streaming}


def test_no_path_host_or_user_is_written(tmp_path):
    folder = shutil.copytree(SHIPPED_MODEL, tmp_path / "my model")
    model = ["--hf-model-id", str(folder)]
    calls = [(generate, ["--prompt", "It's", "--max-new-tokens", "3"]), *((b, SMALL) for b in BENCHMARKS.values())]
    for command, argv in calls:
        file = tmp_path / f"{command.name}.json"
        assert command.main([*argv, *model, "--json", str(file)]) == 0
        document = json.loads(file.read_text())
        assert document["settings"]["hf_model_id"] == "my model"
        words = [word for value in (document["command"], *document["settings"].values()) for word in str(value).split()]
        for own in (str(tmp_path), str(SHIPPED_MODEL), platform.node(), getpass.getuser()):
            assert own not in words
            assert str(tmp_path) not in file.read_text()


def test_the_command_can_be_typed_again(tmp_path):
    file = tmp_path / "x.json"
    argv = ["--mode", "offline", *SMALL, "--prompt", "It's you", "--no-stop-on-eos"]
    argv += ["--lesson", "061", "--dense"]
    assert benchmark_scheduler.main([*argv, "--json", str(file)]) == 0
    command = json.loads(file.read_text())["command"]
    assert command.startswith("rosecourse benchmark_scheduler --mode offline ")
    assert sorted(shlex.split(command)[2:]) == sorted(argv)


@pytest.mark.parametrize(
    ("flags", "dense"), [([], False), (["--paged-attn"], False), (["--dense", "--lesson", "061"], True)]
)
def test_the_settings_say_which_attention_it_was(tmp_path, flags, dense):
    file = tmp_path / "x.json"
    assert benchmark_scheduler.main([*SMALL, *flags, "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["settings"]["dense"] is dense
    assert ("--dense" in document["command"]) == dense
    assert "--paged-attn" not in document["command"]  # it is the default


def test_the_document_says_what_its_numbers_mean(tmp_path):
    file = tmp_path / "x.json"
    assert benchmark_streaming.main([*SMALL, "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["units"].startswith("seconds")
    names = {"ttft", "tpot", "itl", "reader_itl", "delay", "latency", "queueing", "throughput"}
    assert set(document["definitions"]) == names
    assert document["definitions"]["tpot"] == " ".join(metrics.tpot.__doc__.split())
    assert document["settings"]["lesson"] == lesson("best").number
    assert set(document["versions"]) >= {"rosecourse", "python", "torch", "triton", "transformers", "numpy"}
    assert set(document["host"]) >= {"cpu", "cores", "threads", "os", "gpu"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_one_token_cannot_have_is_not_a_number(name, capsys):
    """One token a request: no decode step, so no TPOT, no ITL and no throughput of decode steps."""
    assert BENCHMARKS[name].main([*SMALL, "--max-new-tokens", "1"]) == 0
    out = capsys.readouterr().out
    assert "nan" not in out
    assert ": n/a ms/token" in out
    assert ("Throughput(completion,decode) p50: n/a" in out) == (name == "benchmark_scheduler")


@pytest.mark.parametrize(
    ("number", "flags", "kind"),
    [
        *((number, flags, "paged") for number in ("035", "061", "062", "best") for flags in ([], ["--paged-attn"])),
        *((number, ["--dense"], "gathered dense") for number in ("035", "061")),
    ],
)
def test_the_summary_names_the_lesson_and_the_attention(flags, kind, number, capsys):
    for benchmark in BENCHMARKS.values():
        assert benchmark.main([*SMALL, "--lesson", number, *flags]) == 0
        rung = lesson(number)
        assert f"Lesson: {rung.number}, {rung.title}; attention over {kind} K and V\n" in capsys.readouterr().out


def git(folder, *arguments):
    settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_packages_own_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SOURCE", tmp_path)
    assert report.provenance()["commit"] is report.provenance()["dirty"] is None
    (tmp_path / "rosecourse").mkdir()
    (tmp_path / "rosecourse" / "engine.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "result.json").write_text("no part of what is measured")
    found = report.provenance()
    assert (found["commit"], found["dirty"]) == (git(tmp_path, "rev-parse", "HEAD").strip(), False)
    (tmp_path / "rosecourse" / "engine.py").write_text("2")
    assert report.provenance()["dirty"] is True
    monkeypatch.setattr(report, "SOURCE", tmp_path / "rosecourse")  # somewhere inside another repository
    assert report.provenance()["commit"] is report.provenance()["dirty"] is None
