"""benchmark_streaming --readers: what it prints and writes, in each of the four ways."""

import json
import re

import numpy as np
import pytest

from rosecourse.commands.benchmark import READERS
from tests.support.commands import benchmark_scheduler, benchmark_streaming

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "5", "--no-stop-on-eos", "--warmup-runs", "0"]
SMALL += ["--repeat-runs", "2", "--submit-interval-ms", "1"]
WAYS = pytest.mark.parametrize("way", READERS)


def line(out, name):
    """The three percentiles that a summary gives of this, in milliseconds."""
    (found,) = re.findall(rf"^{name} p50/p95/p99: (\S+) ms$", out, re.MULTILINE)
    return [float(value) for value in found.split("/")]


@WAYS
def test_the_summary_has_both_latencies_and_the_document_every_time(tmp_path, capsys, way):
    file = tmp_path / "x.json"
    assert benchmark_streaming.main([*SMALL, "--readers", way, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"=== streaming, readers: {way} summary ===" in out
    document = json.loads(file.read_text())
    assert document["settings"]["readers"] == way
    assert (f"--readers {way}" in document["command"]) == (way != "sequential")
    assert "read" in document["units"]
    requests = [request for run in document["runs"] for request in run["requests"]]
    assert [len(request["read"]) for request in requests] == [5] * 6
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
    assert benchmark_streaming.main([*SMALL, "--max-new-tokens", "1", "--readers", "one"]) == 0
    out = capsys.readouterr().out
    assert "\nITL p50/p95/p99: n/a ms\nReader ITL p50/p95/p99: n/a ms\n" in out
    assert min(line(out, "Delay")) > 0


def test_a_scheduler_has_no_readers(tmp_path, capsys):
    file = tmp_path / "x.json"
    assert benchmark_scheduler.main([*SMALL, "--json", str(file)]) == 0
    assert "eader" not in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert {len(request["read"]) for run in document["runs"] for request in run["requests"]} == {0}
    assert "readers" not in document["settings"]


@pytest.mark.parametrize(
    ("command", "argv"),
    [(benchmark_streaming, ["--readers", "two"]), (benchmark_scheduler, ["--readers", "one"])],
)
def test_readers_that_are_not_there_are_refused(capsys, command, argv):
    assert command.main([*SMALL, *argv]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "--readers" in told
