"""The record command: what it writes, what it leaves alone, how it goes on, and that a bad call changes nothing."""

import itertools
import json
import re
import shlex
from types import SimpleNamespace

import pytest
import torch

from rosecourse import LESSONS, KVCacheExhausted
from rosecourse.commands import record
from rosecourse.errors import LessonError, ModelError
from rosecourse.lessons.workloads import ARTICLES
from rosecourse.measure import workload
from rosecourse.measure.floor import kv_bytes_per_position, weight_bytes
from rosecourse.measure.provenance import driver_version
from rosecourse.measure.timeline import STEP, STEP_KINDS, Range, Timeline
from rosecourse.measure.traffic import LOAD, MixedTraffic
from rosecourse.measure.workload import run_scheduler
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.records import recorder, step_recorder
from rosecourse.records.comparisons import recorded_comparison, recorded_ladder, recorded_traffic
from rosecourse.records.steps import recorded_steps, steps_of
from rosecourse.records.timelines import recorded_timelines

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--max-batch-size", "2", "--rounds", "5"]
CLEAN = {"commit": "c0ffee" + "0" * 34, "dirty": False}
RUNGS = [rung.number for rung in LESSONS]


@pytest.fixture(autouse=True)
def source(monkeypatch, model):
    """A clean source, whatever the state of the tree that is tested; no time spent on memory and loading."""
    found = record.provenance()
    source = dict(CLEAN)
    for module in (record, recorder):
        monkeypatch.setattr(module, "provenance", lambda: found | source)
    monkeypatch.setattr(recorder, "copy_bandwidth", lambda device: 1e10)
    load = record.model_of

    def loaded(args):
        return load(args) if args.dtype or args.random_weights or args.device != "cpu" else model

    monkeypatch.setattr(record, "model_of", loaded)
    return source


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rung_of(engine):
    """The number of the lesson after which an engine is."""
    parts = {name: type(getattr(engine.decode_step, name)) for name in ("block_tables", "kv_append")}
    return next(r.number for r in LESSONS if all(getattr(r.after, name) is part for name, part in parts.items()))


def spy(monkeypatch, change=lambda run, number: None):
    """Notes the rung of each run of the scheduler; `change(run, number)` may spoil it."""
    order = []

    def run(engine, workload):
        order.append(rung_of(engine))
        found = run_scheduler(engine, workload)
        change(found, len(order))
        return found

    monkeypatch.setitem(workload.RUNNERS, "benchmark_scheduler", run)
    return order


def test_the_workloads_are_the_articles():
    scheduler, streaming = "benchmark_scheduler", "benchmark_streaming"
    found = {name: (w.benchmark, w.num_requests, w.max_new_tokens, w.max_batch_size) for name, w in ARTICLES.items()}
    assert found == {"A": (scheduler, 64, 512, 64), "B": (streaming, 64, 256, 16), "C": (streaming, 128, 128, 128)}
    assert [rung.workload.name for rung in LESSONS] == ["A", "A", "A", "B", "B", "C"]


def test_all_rungs_are_recorded_with_every_sample(tmp_path, capsys):
    out = tmp_path / "some" / "results"
    assert record.main(["--workloads", "A,C", *SMALL, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "A: 5 rounds, same tokens"
    assert re.fullmatch(r"  035 paged decode baseline: TPOT p50 [\d.]+ ms", lines[1])
    assert re.fullmatch(r"  036 block-table cache: TPOT p50 [\d.]+ ms; .*x \[.*\] the throughput of 035, .*", lines[2])
    assert lines[7] == "C: 5 rounds, same tokens"
    assert len(lines) == 14
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
    assert each["035"] == [12, 13, 24, 25, 36]
    assert each["061"] == [7, 18, 19, 30, 31]


# -- mixed traffic ------------------------------------------------------------------------------------------------


def test_mixed_traffic_is_a_burst_and_a_load_for_each_lesson_from_059_on(tmp_path, monkeypatch, capsys):
    traffic = MixedTraffic(num_requests=3, max_batch_size=2, num_blocks=60)
    monkeypatch.setattr(record, "D_SMALL", traffic)
    monkeypatch.setattr("rosecourse.measure.traffic.NEW_TOKENS", (3, 6))  # short ones
    assert record.main(["--workloads", "D", "--device", "cpu", "--rounds", "5", "--out", str(tmp_path)]) == 0
    names = ["D-burst", "D-load-059", "D-load-060", "D-load-061"]
    assert sorted(written(tmp_path)) == [f"cpu/{name}.json" for name in names]
    assert [rung.name for rung in recorded_ladder("D-burst", folder=tmp_path).rungs] == ["038", "059", "060", "061"]
    for before, after in itertools.pairwise(["038", "059", "060", "061"]):
        found = recorded_traffic(after, folder=tmp_path)
        seconds = sorted(found.burst.before.seconds)[2]
        assert found.rate == pytest.approx(LOAD * 3 / seconds)
        assert list(found.load.recording.rungs) == [before, after]
        assert found.load.same_tokens
        settings = found.load.document["settings"]
        assert (settings["num_blocks"], settings["prefix_cache"]) == (60, True)
        assert settings["block_size"] == traffic.config.block_size
        assert settings["workloads"] == "D"
    assert capsys.readouterr().out.count("same tokens") == 4
    assert record.main(["--workloads", "D", "--device", "cpu", "--rounds", "5", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("is there, of this commit and settings") == 4


# -- again --------------------------------------------------------------------------------------------------------


def test_what_is_recorded_is_not_recorded_again(tmp_path, monkeypatch, capsys, source):
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    path = tmp_path / "cpu" / "A.json"
    order = spy(monkeypatch)

    def runs(*more):
        order.clear()
        assert record.main([*argv, *more]) == 0
        return len(order)

    assert runs() == 36
    first = path.read_bytes()
    capsys.readouterr()
    assert runs() == 0
    assert capsys.readouterr().out == "A: is there, of this commit and settings (--force records it anew)\n"
    assert path.read_bytes() == first
    assert runs("--force") == 36
    assert path.read_bytes() != first
    assert runs("--prompt", "Emma") == 36  # other settings
    assert runs("--prompt", "Emma") == 0
    path.write_bytes(path.read_bytes()[:-100])  # damaged
    assert runs("--prompt", "Emma") == 36
    assert runs("--rounds", "6") == 42
    for change in ({"versions": {"torch": "1"}}, {"commit": "d" * 40}):
        source.update(CLEAN | change)
        assert [runs(), runs()] == [36, 0], change
    for change in ({"dirty": True}, {"dirty": None}, {"commit": None}):  # what may have changed again, unseen
        source.update(CLEAN | change)
        assert [runs(), runs()] == [36, 36], change


def test_a_broken_run_leaves_the_old_file_and_those_before_it(tmp_path, monkeypatch, capsys):
    argv = ["--workloads", "C,A", *SMALL, "--out", str(tmp_path), "--force"]
    assert record.main(argv) == 0
    old = (tmp_path / "cpu" / "A.json").read_bytes()

    def break_later(error):
        def change(run, number):
            if number == 9:  # in the first round that counts
                raise error

        return change

    for error, code in (
        (KVCacheExhausted("no blocks"), 2),
        (torch.OutOfMemoryError("full"), 2),
        (KeyboardInterrupt(), 130),
    ):
        spy(monkeypatch, break_later(error))
        capsys.readouterr()
        assert record.main(argv) == code
        assert capsys.readouterr().err.count("\n") == (code == 2)
        assert sorted(written(tmp_path)) == ["cpu/A.json", "cpu/C.json"]
        assert (tmp_path / "cpu" / "A.json").read_bytes() == old


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, capsys):
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path), "--force"]
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
    assert record.main(["--workloads", "A", *SMALL, "--dtype", dtype, "--out", str(tmp_path)]) == code
    captured = capsys.readouterr()
    if code:
        assert "workload A, rung 061: the tokens differ, the times mean nothing" in captured.err
        assert written(tmp_path) == {}
    else:
        assert captured.out.splitlines()[0] == "A: 5 rounds, some tokens differ (rounding)"
        assert recorded_comparison("036", folder=tmp_path).same_tokens is False


# -- by whole rounds ----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by ten seconds with each run."""
    now = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))

    def move(run, number):
        run.total_seconds = 10.0
        run.stats.preemptions = number
        now[0] += 10

    return move


def test_a_recording_ends_before_a_round_that_would_not_fit_and_goes_on_with_it(tmp_path, monkeypatch, capsys, clock):
    """Six rungs of ten seconds: a round takes a minute, and 3.5 minutes have room for two more."""
    argv = ["--workloads", "A,C", *SMALL, "--minutes", "3.5", "--out", str(tmp_path)]
    order, path = spy(monkeypatch, clock), tmp_path / "cpu" / "A.json"
    backwards = RUNGS[::-1]
    assert record.main(argv) == 0
    assert order == [*RUNGS, *backwards, *RUNGS]
    assert list(written(tmp_path)) == ["cpu/A.partial.json"]
    assert recorded_ladder("A", folder=tmp_path) is None
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "A: 2 of 5 rounds are there, each takes 1.0 minutes"
    words = shlex.split(said[1].removeprefix("To go on: "))
    assert words[:2] == ["rosecourse", "record"]
    assert sorted(words[2:]) == sorted(argv)
    assert len(said) == 2  # C has not begun
    order.clear()
    assert record.main(words[2:]) == 0
    assert order == [*RUNGS, *backwards, *RUNGS]  # it warms up once, then come rounds 3 and 4
    assert not path.exists()
    order.clear()
    assert record.main([*argv, "--workloads", "A"]) == 0
    assert order == [*RUNGS, *backwards]
    assert list(written(tmp_path)) == ["cpu/A.json"]
    found = recorded_ladder("A", folder=tmp_path)
    each = {rung.name: [run.stats.preemptions for run in rung.runs] for rung in found.rungs}
    assert each["035"] == [12, 13, 12, 13, 12]  # each call counts its runs from 1
    assert each["061"] == [7, 18, 7, 18, 7]
    assert found.recording.document["rounds"] == found.conditions.rounds == 5


def test_no_round_begins_where_a_warm_up_and_a_round_do_not_fit(tmp_path, monkeypatch, capsys, clock):
    order = spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    assert record.main([*argv, "--minutes", "2.1"]) == 0
    assert len(order) == 12
    order.clear()
    assert record.main([*argv, "--minutes", "1.9"]) == 0
    assert order == []
    assert "A: 1 of 5 rounds are there, each takes 1.0 minutes" in capsys.readouterr().out


def test_rounds_of_another_source_machine_or_settings_are_measured_anew(tmp_path, monkeypatch, clock, source):
    order = spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    path = tmp_path / "cpu" / "A.partial.json"
    assert record.main([*argv, "--minutes", "2.1"]) == 0
    begun = path.read_bytes()

    def rounds(*more):
        path.write_bytes(begun)
        (tmp_path / "cpu" / "A.json").unlink(missing_ok=True)
        order.clear()
        assert record.main([*argv, *more]) == 0
        assert not path.exists()
        return len(order) // 6

    assert rounds() == 5  # a warm-up, and the four that were missing
    assert rounds("--force") == 6
    assert rounds("--prompt", "Emma") == 6
    assert rounds("--rounds", "6") == 7
    begun = begun[:-100]  # damaged
    assert rounds() == 6
    for change in ({"commit": "d" * 40}, {"versions": {"torch": "1"}}, {"dirty": True}):
        source.update(CLEAN)
        path.unlink(missing_ok=True)
        (tmp_path / "cpu" / "A.json").unlink()
        assert record.main([*argv, "--minutes", "2.1"]) == 0
        begun = path.read_bytes()
        source.update(CLEAN | change)
        assert rounds() == 6, change


def test_later_rounds_must_make_the_tokens_of_the_first(tmp_path, monkeypatch, capsys, clock):
    spy(monkeypatch, clock)
    argv = ["--workloads", "A", *SMALL, "--out", str(tmp_path)]
    assert record.main([*argv, "--minutes", "2.1"]) == 0

    def other(run, number):
        run.completions[0][0] += 1  # in every run: they agree with each other

    spy(monkeypatch, other)
    assert record.main(argv) == 2
    assert "workload A, rung 035: the tokens differ" in capsys.readouterr().err


# -- steps --------------------------------------------------------------------------------------------------------


def test_the_steps_of_all_rungs_come_after_all_runs_and_are_timed_before_the_first_timeline(
    tmp_path, monkeypatch, capsys, model
):
    order = spy(monkeypatch)
    times, take = step_recorder.decode_anatomies, step_recorder.take_timeline

    def timed(engines, sessions, *rest, **more):
        order.append("times")
        assert list(engines) == RUNGS
        assert all(len(mine) == 2 for mine in sessions.values())
        assert more == {"wait": False}
        return times(engines, sessions, *rest, **more)

    def taken(engine, sessions, step):
        order.append((rung_of(engine), step))
        made = Timeline((Range(STEP, 0.0, 2000.0),), (), "CPU", 1500.0, step, sessions[0].num_cached_tokens)
        return take(engine, sessions, step) if order[-1][0] == "038" and order.count(order[-1]) == 1 else made

    monkeypatch.setattr(step_recorder, "decode_anatomies", timed)
    monkeypatch.setattr(step_recorder, "take_timeline", taken)
    argv = ["--workloads", "steps,A", *SMALL, "--num-requests", "2", "--max-new-tokens", "80", "--out", str(tmp_path)]
    assert record.main(argv) == 0
    runs = [*RUNGS, *RUNGS[::-1]] * 3
    timelines = [(number, kind) for _ in "ABC" for number in RUNGS for kind in ("inside", "boundary")]
    assert order == [*runs, "times", "times", "times", *timelines]
    assert sorted(written(tmp_path)) == [f"cpu/{name}.json" for name in ("A", "A.steps", "B.steps", "C.steps")]
    found = recorded_steps("A", folder=tmp_path)
    assert list(found.titles) == RUNGS
    assert (found.batch, found.context) == (2, 40)  # half of the completions
    assert all(len(seconds) == 64 for parts in found.times.seconds.values() for seconds in parts.values())
    shape, dtype = model.shape, torch.float32
    moved = weight_bytes(shape, dtype) + 2 * 40 * kv_bytes_per_position(shape, dtype)
    assert found.floor_ms == pytest.approx(1e3 * moved / 1e10)
    boundary = steps_of("A", folder=tmp_path).timelines["038"]["boundary"]  # taken indeed
    assert boundary.context in (128, 192, 256)
    assert 0 < boundary.part_us("kv_append") < boundary.step_us
    said = capsys.readouterr().out.splitlines()
    assert said[7] == f"A.steps: 2 sessions of 40 tokens, floor {found.floor_ms:.2f} ms"
    assert re.fullmatch(r"  035 paged decode baseline: [\d.]+ ms a step, device busy 0.00 ms in 0 kernels", said[8])
    order.clear()
    assert record.main(argv) == 0
    assert order == []
    assert capsys.readouterr().out.count("is there, of this commit and settings") == 4


def test_what_is_counted_says_which_lessons_change_which_kind_of_step(tmp_path, monkeypatch):
    """On a CPU, with two sessions: 059 changes only the boundary, and Triton's kernel is not for so small a batch."""

    def taken(engine, sessions, step):
        return Timeline((Range(STEP, 0.0, 2000.0),), (), "CPU", 1500.0, step, 64)

    monkeypatch.setattr(step_recorder, "take_timeline", taken)
    assert record.main(["--workloads", "steps", *SMALL, "--out", str(tmp_path)]) == 0
    layers = 6
    found = steps_of("B", folder=tmp_path)
    calls = {kind: [found.counts[number][kind]["append_token calls"] for number in RUNGS] for kind in STEP_KINDS}
    assert calls == {
        "inside": [2 * layers, 2 * layers, 0, 0, 0, 0],
        "boundary": [2 * layers, 2 * layers, 2 * layers, 0, 0, 0],
    }
    for number, shown in (("036", True), ("038", True), ("059", True), ("060", True), ("061", False)):
        if shown:
            assert list(recorded_timelines(number, folder=tmp_path)) == ["before", "after"]
        else:
            with pytest.raises(LessonError, match="lesson 061 runs the same code"):
                recorded_timelines(number, folder=tmp_path)


def test_steps_are_not_begun_when_the_time_is_over(tmp_path, monkeypatch, capsys, clock):
    def late(run, number):
        clock(run, number)
        if number == 36:  # the last run of all
            monkeypatch.setattr(recorder.Deadline, "fits", lambda self, seconds: False)

    spy(monkeypatch, late)
    argv = ["--workloads", "A,steps", *SMALL, "--minutes", "9", "--out", str(tmp_path)]
    assert record.main(argv) == 0
    assert list(written(tmp_path)) == ["cpu/A.json"]
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "steps: no time is left for them"
    assert said[-1].startswith("To go on: rosecourse record ")


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
        (["--workloads", "E"], "there is no workload 'E': give some of A,B,C,D"),
        (["--workloads", "A,"], "there is no workload ''"),
        (["--workloads", "A B"], "there is no workload 'A B'"),
        (["--rounds", "4"], "rounds is 4: give 5 or more"),
        (["--rounds", "many"], "invalid int value: 'many'"),
        (["--minutes", "0"], "minutes is 0.0: give more than 0"),
        (["--minutes", "nan"], "minutes is nan: give more than 0"),
        (["--minutes", "9", "--force"], "goes on with what is there and --force begins anew: give one of them"),
        (["--num-requests", "0"], "num_requests is 0: give 1 or more"),
        (["--max-new-tokens", "1"], "max_new_tokens is 1: give 2 or more"),
        (["--max-batch-size", "-1"], "max_batch_size is -1: give 1 or more"),
        (["--max-new-tokens", "512"], "512 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--prompt", "a b " * 300], "4 new ones do not fit into the model's 512: give a shorter prompt"),
        (["--workloads", "D", "--random-weights", "small"], "mixed traffic has requests of 456 tokens"),
        (["--workloads", "steps", "--random-weights", "small"], "the steps take sessions of 130 tokens, which do not"),
        (["--out", "taken", "--workloads", "steps"], "B.steps.json is a folder: move it away"),
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
        (["--out", "taken", "--workloads", "A"], "A.json is a folder: move it away"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
    ids=lambda x: " ".join(x)[:30] if isinstance(x, list) else "",
)
def test_a_bad_call_costs_one_line_and_changes_nothing(tmp_path, monkeypatch, capsys, flags, message):
    def never(*_):
        raise AssertionError("the work has begun")

    small = GPT2Shape(vocab_size=4096, context=64, width=16, num_layers=2, num_heads=2)
    monkeypatch.setitem(load.RANDOM_SHAPES, "small", small)
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
    assert out.startswith("usage: rosecourse record")
    for flag in (
        "--workloads",
        "--rounds",
        "--minutes",
        "--out",
        "--force",
        "--commit",
        "--num-requests",
        "--random-weights",
    ):
        assert flag in out
