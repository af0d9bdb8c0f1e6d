"""The record command: what it writes, what it leaves alone, and that a bad call changes nothing."""

import json
import re
import shlex
from dataclasses import astuple

import pytest
import torch

from rosecourse import LESSONS, KVCacheExhausted
from rosecourse.commands import record
from rosecourse.errors import ModelError
from rosecourse.measure import workload
from rosecourse.measure.profiling import STEPS, take_timeline
from rosecourse.measure.provenance import driver_version
from rosecourse.measure.timeline import STEP, Range, Timeline
from rosecourse.measure.workload import run_scheduler
from rosecourse.records import recorder
from rosecourse.records.comparisons import recorded_comparison
from rosecourse.records.timelines import recorded_timelines

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--max-batch-size", "2"]
STEP_TAKEN = Timeline((Range(STEP, 0.0, 2000.0), Range("roseinfer.model.forward", 500.0, 1000.0)), (), "CPU", 1500.0)
CLEAN = {"commit": "c0ffee" + "0" * 34, "dirty": False}


@pytest.fixture(autouse=True)
def source(monkeypatch, model):
    """A clean source, whatever the state of the tree that is tested; no time spent on memory, loading and profiler."""
    found = record.provenance()
    source = dict(CLEAN)
    for module in (record, recorder):
        monkeypatch.setattr(module, "provenance", lambda: found | source)
    monkeypatch.setattr(recorder, "copy_bandwidth", lambda device: 1e10)
    monkeypatch.setattr(recorder, "take_timeline", lambda engine, sessions: STEP_TAKEN)
    load = record.model_of

    def loaded(args):
        return load(args) if args.dtype or args.random_weights or args.device != "cpu" else model

    monkeypatch.setattr(record, "model_of", loaded)
    return source


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_tasks_are_the_articles():
    scheduler, streaming = "benchmark_scheduler", "benchmark_streaming"
    sizes = {rung.number: astuple(rung.workload) for rung in LESSONS}
    assert sizes["035"] == sizes["036"] == sizes["038"] == (scheduler, 64, 512, 64)
    assert sizes["059"] == sizes["060"] == (streaming, 256, 256, 16)
    assert sizes["061"] == (streaming, 128, 128, 128)


def test_lessons_are_recorded_with_every_sample(tmp_path, capsys):
    out = tmp_path / "some" / "results"
    assert record.main(["--lessons", "035,036,061", *SMALL, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(r"035 paged decode baseline: the starting point; TPOT p50 [\d.]+ ms; same tokens", lines[0])
    assert re.fullmatch(r"036 block-table cache: .*x \[.*\], .*; TPOT p50 .* to .* ms; same tokens", lines[1])
    assert captured.err == ""
    names = ["035.json", "035.timeline.json", "036.json", "036.timeline.json", "061.json", "061.timeline.json"]
    assert sorted(written(out)) == [f"cpu/{name}" for name in names]
    assert recorded_comparison("035", folder=out).before.runs == []
    for number in ("036", "061"):
        found = recorded_comparison(number, folder=out)
        assert len(found.before.runs) == len(found.after.runs) == 5
        assert all(len(t.tokens) == 4 for run in found.before.runs + found.after.runs for t in run.times)
        assert all(t.submitted <= t.admitted <= t.tokens[0] for run in found.after.runs for t in run.times)
        assert found.document["commit"] == CLEAN["commit"]
        assert found.share_of_floor("after") > 0
        assert found.same_tokens
    settings = recorded_comparison("061", folder=out).document["settings"]
    assert settings["benchmark"] == "benchmark_streaming"
    assert (settings["model"], settings["dtype"], settings["prefix_cache"]) == ("tiny-gpt2", "float32", False)


def test_a_file_has_the_command_that_made_it_and_nothing_of_the_machine(tmp_path):
    assert record.main(["--lessons", "035,036", *SMALL, "--prompt", "It's", "--force", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "cpu" / "036.json").read_text()
    assert str(tmp_path) not in text
    words = shlex.split(json.loads(text)["command"])
    assert words[:2] == ["rosecourse", "record"]
    assert sorted(words[2:]) == sorted(["--lessons", "036", *SMALL, "--prompt", "It's"])


def spy(monkeypatch, change=lambda run, number: None):
    """Notes which block tables each run of the scheduler had; `change(run, number)` may spoil it."""
    order = []

    def run(engine, workload):
        order.append("A" if isinstance(engine.decode_step.block_tables, LESSONS[0].after.block_tables) else "B")
        found = run_scheduler(engine, workload)
        change(found, len(order))
        return found

    monkeypatch.setitem(workload.RUNNERS, "benchmark_scheduler", run)
    return order


def test_runs_are_interleaved_and_the_first_pair_does_not_count(tmp_path, monkeypatch):
    def label(run, number):
        run.stats.preemptions = number

    order = spy(monkeypatch, label)
    assert record.main(["--lessons", "036", *SMALL, "--pairs", "6", "--out", str(tmp_path)]) == 0
    assert "".join(order) == "ABBAABBAABBAAB"
    found = recorded_comparison("036", folder=tmp_path)
    assert [run.stats.preemptions for run in found.before.runs] == [4, 5, 8, 9, 12, 13]
    assert [run.stats.preemptions for run in found.after.runs] == [3, 6, 7, 10, 11, 14]
    order.clear()
    assert record.main(["--lessons", "035", *SMALL, "--out", str(tmp_path)]) == 0
    assert "".join(order) == "A" * 6
    assert [run.stats.preemptions for run in recorded_comparison("035", folder=tmp_path).after.runs] == [2, 3, 4, 5, 6]


# -- again --------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_not_recorded_again(tmp_path, monkeypatch, capsys, source):
    argv = ["--lessons", "036", *SMALL, "--out", str(tmp_path)]
    path = tmp_path / "cpu" / "036.json"
    order = spy(monkeypatch)

    def runs(*more):
        order.clear()
        assert record.main([*argv, *more]) == 0
        return len(order)

    assert runs() == 12
    first = path.read_bytes()
    capsys.readouterr()
    assert runs() == 0
    assert capsys.readouterr().out == "036: is there, of this commit and settings (--force records it anew)\n"
    assert path.read_bytes() == first
    assert runs("--force") == 12
    assert path.read_bytes() != first
    assert runs("--prompt", "Emma") == 12  # other settings
    assert runs("--prompt", "Emma") == 0
    path.write_bytes(path.read_bytes()[:-100])  # damaged
    assert runs("--prompt", "Emma") == 12
    for change in ({"versions": {"torch": "1"}}, {"commit": "d" * 40}):
        source.update(CLEAN | change)
        assert [runs(), runs()] == [12, 0], change
    for change in ({"dirty": True}, {"dirty": None}, {"commit": None}):  # what may have changed again, unseen
        source.update(CLEAN | change)
        assert [runs(), runs()] == [12, 12], change


def test_a_broken_run_leaves_the_old_file_and_those_before_it(tmp_path, monkeypatch, capsys):
    assert record.main(["--lessons", "036", *SMALL, "--out", str(tmp_path)]) == 0
    old = (tmp_path / "cpu" / "036.json").read_bytes()

    def break_later(error):
        def change(run, number):
            if number == 15:  # 6 of lesson 035, then in the middle of 036
                raise error

        return change

    for error, code in (
        (KVCacheExhausted("no blocks"), 2),
        (torch.OutOfMemoryError("full"), 2),
        (KeyboardInterrupt(), 130),
    ):
        spy(monkeypatch, break_later(error))
        capsys.readouterr()
        assert record.main(["--lessons", "035,036", *SMALL, "--out", str(tmp_path), "--force"]) == code
        assert capsys.readouterr().err.count("\n") == (code == 2)
        assert sorted(written(tmp_path)) == ["cpu/035.json", "cpu/036.json", "cpu/036.timeline.json"]
        assert (tmp_path / "cpu" / "036.json").read_bytes() == old


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, capsys):
    argv = ["--lessons", "036", *SMALL, "--out", str(tmp_path), "--force"]
    assert record.main(argv) == 0
    old = written(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert record.main(argv) == 2
    assert capsys.readouterr().err == "rosecourse record: error: [Errno 28] No space left on device\n"
    assert written(tmp_path) == old


@pytest.mark.parametrize(("dtype", "code"), [("float32", 2), ("bfloat16", 0)])
def test_other_tokens_are_an_error_in_float32_and_said_in_less(tmp_path, monkeypatch, capsys, dtype, code):
    def other(run, number):
        if number == 7:
            run.completions[1][2] += 1

    spy(monkeypatch, other)
    assert record.main(["--lessons", "036", *SMALL, "--dtype", dtype, "--out", str(tmp_path)]) == code
    captured = capsys.readouterr()
    if code:
        assert "lesson 036: the tokens differ, the times mean nothing" in captured.err
        assert written(tmp_path) == {}
    else:
        assert captured.out.splitlines()[0].endswith("other tokens (rounding)")
        assert recorded_comparison("036", folder=tmp_path).same_tokens is False


# -- timelines ----------------------------------------------------------------------------------------------------


def test_a_lesson_gets_the_timelines_of_both_engines_after_all_runs(tmp_path, monkeypatch, capsys):
    order, taken = spy(monkeypatch), []

    def take(engine, sessions):
        taken.append((len(order), type(engine.decode_step.kv_append), len(sessions), engine.config.max_seq_len))
        assert all(s.num_cached_tokens == len(s.token_ids) - 1 for s in sessions)  # prefilled, with a first token
        return take_timeline(engine, sessions) if len(taken) > 1 else STEP_TAKEN

    monkeypatch.setattr(recorder, "take_timeline", take)
    assert record.main(["--lessons", "035,038", *SMALL, "--out", str(tmp_path)]) == 0
    before, after = (rung.kv_append for rung in (LESSONS[2].before, LESSONS[2].after))
    room = taken[0][3]
    assert taken == [(18, before, 2, room), (18, before, 2, room), (18, after, 2, room)]
    assert room >= STEPS + 2
    assert recorded_timelines("035", folder=tmp_path) == {"after": STEP_TAKEN}
    found = recorded_timelines("038", folder=tmp_path)
    assert list(found) == ["before", "after"]
    assert all(0 < one.part_us("kv_append") < one.step_us for one in found.values())
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "035 timeline of a step, with the profiler on: 2.00 ms, 0 kernels"
    assert re.fullmatch(r"038 timeline of a step, .* on: [\d.]+ to [\d.]+ ms, 0 to 0 kernels", lines[3])
    document = json.loads((tmp_path / "cpu" / "038.timeline.json").read_text())
    runs = recorded_comparison("038", folder=tmp_path).document
    assert all(document[key] == runs[key] for key in ("lesson", "command", "commit", "dirty", "host", "versions"))


def test_a_lesson_without_its_timelines_is_not_recorded_and_only_they_are_taken(tmp_path, monkeypatch, capsys, source):
    argv = ["--lessons", "036", *SMALL, "--out", str(tmp_path)]
    order, path, runs = spy(monkeypatch), tmp_path / "cpu" / "036.timeline.json", tmp_path / "cpu" / "036.json"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "take_timeline", stop)
        assert record.main(argv) == 130
    assert list(written(tmp_path)) == ["cpu/036.json"]
    old = runs.read_bytes()
    for spoil in (lambda: None, path.unlink, lambda: path.write_bytes(path.read_bytes()[:-50])):
        spoil()
        order.clear()
        capsys.readouterr()
        assert record.main(argv) == 0
        assert capsys.readouterr().out.startswith("036 timeline of a step")
        assert (order, runs.read_bytes()) == ([], old)
        assert recorded_timelines("036", folder=tmp_path) == {"before": STEP_TAKEN, "after": STEP_TAKEN}
    whole = path.read_bytes()
    assert record.main(argv) == 0
    assert capsys.readouterr().out.endswith("036: is there, of this commit and settings (--force records it anew)\n")
    assert path.read_bytes() == whole
    source.update(commit="d" * 40)
    assert record.main(argv) == 0
    assert json.loads(path.read_text())["commit"] == "d" * 40


# -- the source and the machine -----------------------------------------------------------------------------------


def test_where_there_is_no_git_the_commit_can_be_stated(tmp_path, source):
    source.update(commit=None, dirty=None)
    for stated, dirty in (("c0ffee1", False), ("c0ffee1-dirty", True)):
        argv = ["--lessons", "035", *SMALL, "--out", str(tmp_path), "--commit", stated]
        assert record.main(argv) == 0
        document = recorded_comparison("035", folder=tmp_path).document
        assert (document["commit"], document["dirty"]) == ("c0ffee1", dirty)
        assert "--commit" not in document["command"]


def test_git_knows_better_than_the_flag(source):
    parser = record.make_parser()
    source.update(dirty=True)
    told = {"commit": CLEAN["commit"], "dirty": True}
    assert record.source_of(parser.parse_args([])) == told
    assert record.source_of(parser.parse_args(["--commit", CLEAN["commit"][:9]])) == told


def test_on_a_gpu_the_model_is_the_articles(monkeypatch, capsys):
    def stop(args):
        raise ModelError(f"random weights: {args.random_weights}, folder: {args.hf_model_id}")

    monkeypatch.setattr(record, "resolve_device", lambda device: torch.device("cuda" if device == "auto" else device))
    monkeypatch.setattr(record, "model_of", stop)
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
        (["--lessons", "042"], "there is no lesson '042': give one of 035"),
        (["--lessons", "036,"], "there is no lesson ''"),
        (["--lessons", "036 038"], "there is no lesson '036 038'"),
        (["--pairs", "4"], "pairs is 4: give 5 or more"),
        (["--pairs", "many"], "invalid int value: 'many'"),
        (["--num-requests", "0"], "num_requests is 0: give 1 or more"),
        (["--max-new-tokens", "1"], "max_new_tokens is 1: give 2 or more"),
        (["--max-batch-size", "-1"], "max_batch_size is -1: give 1 or more"),
        (["--max-new-tokens", "512"], "512 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--prompt", "a b " * 250], "29 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "\udcff"], "the prompt is not UTF-8 text"),
        (["--commit", "HEAD"], "commit is 'HEAD': give 7 to 40 digits"),
        (["--commit", "-dirty"], "expected one argument"),
        (["--commit", "badcafe"], "commit is badcafe, but git says c0ffee"),
        (["--device", "tpu"], "no device is called 'tpu'"),
        (["--hf-model-id", "gpt2", "--random-weights", "gpt2"], "not allowed with argument"),
        (["--random-weights", "gpt9"], "no random model is called 'gpt9'"),
        (["--out", "file"], "--out file cannot be written: Not a directory"),
        (["--out", "file/below"], "--out file/below cannot be written: Not a directory"),
        (["--out", "a\0b"], "cannot be written"),
        (["--out", "a" * 300], "cannot be written: File name too long"),
        (["--out", "taken", "--lessons", "036"], "036.json is a folder: move it away"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
    ids=lambda x: " ".join(x)[:30] if isinstance(x, list) else "",
)
def test_a_bad_call_costs_one_line_and_changes_nothing(tmp_path, monkeypatch, capsys, flags, message):
    def never(*_):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(recorder, "copy_bandwidth", never)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "cpu" / "036.json").mkdir(parents=True)
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
    assert out.startswith("usage: rosecourse record")
    for flag in ("--lessons", "--pairs", "--out", "--force", "--commit", "--num-requests", "--random-weights"):
        assert flag in out
