"""The record command: what it writes, of which source and machine, and that a bad call changes nothing."""

import itertools
import json
import re
import shlex

import pytest
import torch

from rosecourse import LESSONS
from rosecourse.commands import engines, options, tasks
from rosecourse.commands import record as recording
from rosecourse.errors import LessonError, ModelError
from rosecourse.lessons.workloads import ARTICLES
from rosecourse.measure.provenance import driver_version
from rosecourse.measure.traffic import LOAD, MixedTraffic
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.records import assignments, recorder, step_recorder
from rosecourse.records.comparisons import recorded_comparison, recorded_ladder, recorded_traffic
from rosecourse.records.steps import recorded_steps
from rosecourse.records.timelines import recorded_timelines
from tests.support.commands import record
from tests.support.record_command import CLEAN, RUNGS, SMALL, spy, written

pytestmark = pytest.mark.usefixtures("source")


def test_the_workloads_are_the_articles():
    scheduler, streaming = "benchmark_scheduler", "benchmark_streaming"
    found = {name: (w.benchmark, w.num_requests, w.max_new_tokens, w.max_batch_size) for name, w in ARTICLES.items()}
    own = {"E": (scheduler, 16, 64, 128), "F": (scheduler, 16, 512, 16)}
    assert found == own | {
        "A": (scheduler, 64, 512, 64),
        "B": (streaming, 64, 256, 16),
        **dict.fromkeys(("C", "C-one", "C-threads", "C-asyncio"), (streaming, 128, 128, 128)),
    }
    assert [rung.workload.name for rung in LESSONS] == [*"AAABBCACCEAA", "C-one", *"AAA"]


def test_all_rungs_are_recorded_with_every_sample(tmp_path, capsys):
    out = tmp_path / "some" / "results"
    assert record.main(["--workloads", "A,C", *SMALL, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "A: 5 rounds, same tokens"
    assert re.fullmatch(r"  035 paged decode baseline: TPOT p50 [\d.]+ ms", lines[1])
    assert re.fullmatch(r"  036 block-table cache: TPOT p50 [\d.]+ ms; .*x \[.*\] the throughput of 035, .*", lines[2])
    assert lines[len(RUNGS) + 1] == "C: 5 rounds, same tokens"
    assert len(lines) == 2 * (len(RUNGS) + 1)
    assert captured.err == ""
    assert sorted(written(out)) == ["cpu/A.json", "cpu/C.json"]
    for name, benchmark in (("A", "benchmark_scheduler"), ("C", "benchmark_streaming")):
        found = recorded_ladder(name, folder=out)
        assert [rung.name for rung in found.rungs] == RUNGS
        assert found.titles == [rung.title for rung in LESSONS]
        for rung in found.rungs:
            assert len(rung.runs) == 5
            assert all(len(t.tokens) == 4 for run in rung.runs for t in run.times)
            assert all(t.submitted <= t.admitted <= t.tokens[0] for run in rung.runs for t in run.times)
        assert min(found.shares_of_floor) > 0
        assert found.conditions.same_tokens
        assert found.recording.document["commit"] == CLEAN["commit"]
        settings = found.recording.document["settings"]
        assert settings["benchmark"] == benchmark
        assert (settings["prompt_tokens"], settings["rate"]) == (3, None)
        assert (settings["model"], settings["dtype"], settings["prefix_cache"]) == ("tiny-gpt2", "float32", False)


def test_a_file_has_the_command_that_made_it_and_nothing_of_the_machine(tmp_path):
    assert record.main(["--workloads", "A,C", *SMALL, "--prompt", "It's", "--force", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "cpu" / "C.json").read_text()
    assert str(tmp_path) not in text
    words = shlex.split(json.loads(text)["command"])
    assert words[:2] == ["rosecourse", "record"]
    assert sorted(words[2:]) == sorted(["--workloads", "C", *SMALL, "--prompt", "It's"])


def test_every_round_runs_all_rungs_forwards_or_backwards_and_the_first_does_not_count(tmp_path, monkeypatch):
    def label(run, number):
        run.stats.preemptions = number

    order = spy(monkeypatch, label)
    assert record.main(["--workloads", "A", *SMALL, "--out", str(tmp_path)]) == 0
    assert order == [*RUNGS, *RUNGS[::-1]] * 3
    found = recorded_ladder("A", folder=tmp_path)
    each = {rung.name: [run.stats.preemptions for run in rung.runs] for rung in found.rungs}
    n = len(RUNGS)
    assert each["035"] == [2 * n, 2 * n + 1, 4 * n, 4 * n + 1, 6 * n]
    assert each[RUNGS[-1]] == [n + 1, 3 * n, 3 * n + 1, 5 * n, 5 * n + 1]


# -- mixed traffic ------------------------------------------------------------------------------------------------


def test_mixed_traffic_is_a_burst_and_a_load_for_each_lesson_from_059_on(tmp_path, monkeypatch, capsys):
    traffic = MixedTraffic(num_requests=3, max_batch_size=2, num_blocks=60, new_tokens=(3, 6))
    monkeypatch.setattr(tasks, "D_SMALL", traffic)
    assert record.main(["--workloads", "D", "--device", "cpu", "--rounds", "5", "--out", str(tmp_path)]) == 0
    rungs = RUNGS[RUNGS.index("038") :]
    names = ["D-burst", *(f"D-load-{number}" for number in rungs[1:])]
    assert sorted(written(tmp_path)) == [f"cpu/{name}.json" for name in names]
    assert [rung.name for rung in recorded_ladder("D-burst", folder=tmp_path).rungs] == rungs
    for before, after in itertools.pairwise(rungs):
        found = recorded_traffic(after, folder=tmp_path)
        seconds = sorted(found.burst.before.seconds)[2]
        assert found.load.document["settings"]["rate"] == pytest.approx(LOAD * 3 / seconds)
        assert found.rate == pytest.approx(LOAD * len(found.load.after.runs[0].times) / seconds)
        assert list(found.load.recording.rungs) == [before, after]
        assert found.load.same_tokens
        settings = found.load.document["settings"]
        assert (settings["num_blocks"], settings["prefix_cache"]) == (60, True)
        assert settings["block_size"] == traffic.config.block_size
        assert settings["workloads"] == "D"
    assert capsys.readouterr().out.count("same tokens") == len(names)
    assert record.main(["--workloads", "D", "--device", "cpu", "--rounds", "5", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("is there, of this commit and settings") == len(names)


# -- a part of the ladder ------------------------------------------------------------------------------------------


def test_a_part_of_the_ladder_is_recorded_in_a_file_of_its_own(tmp_path, monkeypatch, capsys):
    """The whole ladder's file stays as it is, and each lesson is read from a file that has both of its rungs."""
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(assignments, "LESSONS", LESSONS[:6])  # as it was when 061 was the last
        assert record.main(argv) == 0
    old = (tmp_path / "cpu" / "A.json").read_bytes()
    assert record.main([*argv, "--from", "061"]) == 0
    assert capsys.readouterr().out.count("A-from-061: 5 rounds, same tokens") == 1
    assert sorted(written(tmp_path)) == ["cpu/A-from-061.json", "cpu/A.json"]
    assert (tmp_path / "cpu" / "A.json").read_bytes() == old
    later = RUNGS[RUNGS.index("061") :]
    assert list(recorded_ladder("A", folder=tmp_path).recording.rungs) == RUNGS[:6]
    assert list(recorded_ladder("A", folder=tmp_path, first="061").recording.rungs) == later
    assert recorded_ladder("A", folder=tmp_path, first="060") is None
    for before, after in itertools.pairwise(RUNGS):
        found = recorded_comparison(after, "A", folder=tmp_path)
        assert found.numbers == {"before": before, "after": after}
        assert found.document["workload"] == ("A" if after <= "061" else "A-from-061")
    settings = found.document["settings"]
    assert (settings["from"], settings["num_requests"]) == ("061", 3)
    assert "--from 061" in found.document["command"]
    assert record.main([*argv, "--from", "061"]) == 0
    assert capsys.readouterr().out == "A-from-061: is there, of this commit and settings (--force records it anew)\n"


def test_a_part_of_the_ladder_may_have_few_rungs(tmp_path, monkeypatch):
    """The last lessons, with steps and timelines."""
    monkeypatch.setattr(step_recorder, "TIMELINE_ROUNDS", 1)  # each is taken under a profiler
    first, before, last = RUNGS[-3:]
    workload = LESSONS[-1].workload.name
    argv = ["--workloads", f"{workload},steps", *SMALL, "--from", first, "--out", str(tmp_path)]
    assert record.main(argv) == 0
    found = recorded_comparison(last, folder=tmp_path)
    assert (found.numbers, found.document["workload"]) == (
        {"before": before, "after": last},
        f"{workload}-from-{first}",
    )
    assert list(recorded_steps(workload, folder=tmp_path, first=first).times.seconds) == [first, before, last]
    with pytest.raises(LessonError, match=f"lesson {last} runs the same code"):  # on a CPU
        recorded_timelines(last, folder=tmp_path)
    assert recorded_comparison(first, folder=tmp_path) is None


def test_mixed_traffic_from_a_rung_on_has_the_loads_of_the_lessons_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tasks, "D_SMALL", MixedTraffic(num_requests=3, max_batch_size=2, num_blocks=60, new_tokens=(3, 6))
    )
    argv = ["--workloads", "D", "--device", "cpu", "--rounds", "5", "--out", str(tmp_path), "--from", RUNGS[-3]]
    assert record.main(argv) == 0
    names = [f"D-burst-from-{RUNGS[-3]}", f"D-load-{RUNGS[-2]}", f"D-load-{RUNGS[-1]}"]
    assert sorted(written(tmp_path)) == [f"cpu/{name}.json" for name in names]
    found = recorded_traffic(RUNGS[-1], folder=tmp_path)
    assert found.burst.document["workload"] == names[0]
    assert recorded_traffic(RUNGS[-3], folder=tmp_path) is None


# -- the source and the machine -----------------------------------------------------------------------------------


def test_where_there_is_no_git_the_commit_can_be_stated(tmp_path, source):
    source.update(commit=None, dirty=None)
    for stated, dirty in (("c0ffee1", False), ("c0ffee1-dirty", True)):
        argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path), "--commit", stated]
        assert record.main(argv) == 0
        document = recorded_ladder("A", folder=tmp_path).document
        assert (document["commit"], document["dirty"]) == ("c0ffee1", dirty)
        assert "--commit" not in document["command"]


def test_git_knows_better_than_the_flag(source):
    source.update(dirty=True)
    told = {"commit": CLEAN["commit"], "dirty": True}
    assert recording.source_of(record.flags()) == told
    assert recording.source_of(record.flags("--commit", CLEAN["commit"][:9])) == told


def test_on_a_gpu_the_model_is_the_articles(monkeypatch, capsys):
    def stop(args):
        raise ModelError(f"random weights: {args.random_weights}, folder: {args.hf_model_id}")

    monkeypatch.setattr(engines, "resolve_device", lambda device: torch.device("cuda" if device == "auto" else device))
    monkeypatch.setattr(engines, "model_of", stop)
    for flags, message in (
        ([], "random weights: gpt2, folder: None"),
        (["--hf-model-id", "x"], "random weights: None, folder: x"),
        (["--random-weights", "gpt2-medium"], "random weights: gpt2-medium"),
        (["--device", "cpu"], "random weights: None, folder: None"),
    ):
        assert record.main(flags) == 2
        assert message in capsys.readouterr().err


def test_a_machine_without_a_driver(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert driver_version() is None


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workloads", "G"], "'G' is not one of 'A', 'B', 'C'"),
        (["--workloads", "A,"], "'' is not one of"),
        (["--workloads", "A B"], "'A B' is not one of"),
        (["--rounds", "4"], "4 is not in the range 5<=x"),
        (["--rounds", "many"], "'many' is not a valid integer"),
        (["--from", "042"], "Invalid value for '--from': '042' is not one of '036', '038'"),
        (["--from", "035"], "Invalid value for '--from': '035'"),
        (["--from", LESSONS[-1].number], f"Invalid value for '--from': '{LESSONS[-1].number}'"),
        (["--from", "best"], "Invalid value for '--from': 'best'"),
        (["--minutes", "0"], "0.0 is not in the range x>0"),
        (["--minutes", "nan"], "nan is not a number"),
        (["--minutes", "9", "--force"], "goes on with what is there and --force begins anew: give one of them"),
        (["--num-requests", "0"], "0 is not in the range 1<=x"),
        (["--max-new-tokens", "1"], "1 is not in the range 2<=x"),
        (["--max-batch-size", "-1"], "-1 is not in the range 1<=x"),
        (["--max-new-tokens", "512"], "512 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--prompt", "a b " * 300], "4 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--workloads", "D", "--random-weights", "small"], "mixed traffic has requests of 328 tokens"),
        (
            ["--workloads", "steps", "--random-weights", "small"],
            "100 tokens and 4 new ones do not fit into the model's 64",
        ),
        (["--out", "taken", "--workloads", "steps"], "B.steps.json is a folder: move it away"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\udcff"], "the prompt is not UTF-8 text"),
        (["--commit", "HEAD"], "commit is 'HEAD': give 7 to 40 digits"),
        (["--commit", "-dirty"], "commit is '-dirty': give 7 to 40 digits"),
        (["--commit", "badcafe"], "commit is badcafe, but git says c0ffee"),
        (["--device", "tpu"], "no device is called 'tpu'"),
        (["--hf-model-id", "gpt2", "--random-weights", "gpt2"], "both name a model: give one of them"),
        (["--random-weights", "gpt9"], "'gpt9' is not one of 'gpt2', 'gpt2-medium'"),
        (["--out", "file"], "--out file cannot be written: Not a directory"),
        (["--out", "file/below"], "--out file/below cannot be written: Not a directory"),
        (["--out", "a\0b"], "cannot be written"),
        (["--out", "a" * 300], "cannot be written: File name too long"),
        (["--out", "taken", "--workloads", "A"], "A.json is a folder: move it away"),
        (["--nonsense"], "No such option '--nonsense'."),
    ],
    ids=lambda x: " ".join(x)[:30] if isinstance(x, list) else "",
)
def test_a_bad_call_costs_one_line_and_changes_nothing(tmp_path, monkeypatch, capsys, flags, message):
    def never(*_):
        raise AssertionError("the work has begun")

    small = GPT2Shape(vocab_size=4096, context=64, width=16, num_layers=2, num_heads=2)
    monkeypatch.setitem(load.RANDOM_SHAPES, "small", small)
    monkeypatch.setattr(options.RANDOM_WEIGHTS, "choices", ("gpt2", "gpt2-medium", "small"))
    monkeypatch.setattr(recorder, "copy_bandwidth", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "cpu" / "A.json").mkdir(parents=True)
    (tmp_path / "taken" / "cpu" / "B.steps.json").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert record.main([*SMALL, "--out", "new", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("rosecourse record: error: ")
    assert message in captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_help_names_every_flag(capsys):
    assert record.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: rosecourse record")
    for flag in (
        "--workloads",
        "--from",
        "--rounds",
        "--minutes",
        "--out",
        "--force",
        "--commit",
        "--num-requests",
        "--random-weights",
    ):
        assert flag in out
