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


def document_of(command, argv, folder):
    assert command.main([*argv, "--json", str(folder / "x.json")]) == 0
    return json.loads((folder / "x.json").read_text())


def test_a_document_says_nothing_of_whose_machine_it_is(tmp_path):
    folder = shutil.copytree(SHIPPED_MODEL, tmp_path / "my model")
    calls = [(generate, ["--prompt", "It's", "--max-new-tokens", "3"]), *((b, SMALL) for b in BENCHMARKS.values())]
    for command, argv in calls:
        document = document_of(command, [*argv, "--hf-model-id", str(folder)], tmp_path)
        assert document["settings"]["hf_model_id"] == "my model"
        words = [word for value in (document["command"], *document["settings"].values()) for word in str(value).split()]
        for own in (str(SHIPPED_MODEL), platform.node(), getpass.getuser()):
            assert own not in words
        assert str(tmp_path) not in json.dumps(document)


@pytest.mark.parametrize("flags", [[], ["--paged-attn"], ["--dense", "--lesson", "061", "--no-stop-on-eos"]])
def test_a_documents_command_can_be_typed_again(tmp_path, flags):
    argv = [*SMALL, "--prompt", "It's you", *flags]
    document = document_of(benchmark_scheduler, argv, tmp_path)
    assert document["command"].startswith("rosecourse benchmark_scheduler ")
    assert sorted(shlex.split(document["command"])[2:]) == sorted(one for one in argv if one != "--paged-attn")
    assert document["settings"]["dense"] is ("--dense" in flags)


def test_a_document_says_what_its_numbers_mean(tmp_path):
    document = document_of(benchmark_streaming, SMALL, tmp_path)
    assert document["units"].startswith("seconds")
    assert document["definitions"] == metrics.DEFINITIONS
    assert document["settings"]["lesson"] == lesson("best").number
    assert set(document["versions"]) >= {"rosecourse", "python", "torch", "triton", "transformers", "numpy"}
    assert set(document["host"]) >= {"cpu", "cores", "threads", "os", "gpu"}


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize(("flags", "kind"), [(["best"], "paged"), (["061", "--dense"], "gathered dense")])
def test_a_summary_names_lesson_and_attention_and_no_nan(name, flags, kind, capsys):
    """One token a request: no decode step, so no TPOT, no ITL and no throughput of decode steps."""
    assert BENCHMARKS[name].main([*SMALL, "--max-new-tokens", "1", "--lesson", *flags]) == 0
    rung, out = lesson(flags[0]), capsys.readouterr().out
    assert f"Lesson: {rung.number}, {rung.title}; attention over {kind} K and V\n" in out
    assert ("nan" in out, ": n/a ms/token" in out) == (False, True)


def git(folder, *arguments):
    settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_that_of_the_packages_own_checkout(tmp_path, monkeypatch):
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
