"""The command that climbs the ladder: rungs in turns, a table, a file with every sample, and a picture."""

import json
import re

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from rosecourse import LESSONS, InferenceEngine, lesson
from rosecourse.commands import benchmark_ladder as climbing
from rosecourse.commands import engines, tasks
from rosecourse.commands.options import Flags
from rosecourse.lessons.workloads import ARTICLES, SMALL, A
from rosecourse.measure.floor import share_of_runs
from rosecourse.measure.holding import all_kept, one_at_a_time
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import ratio
from rosecourse.measure.traffic import MixedTraffic
from rosecourse.pictures.plots import drawn_ladders
from rosecourse.records.measured import MeasuredLadder
from rosecourse.records.run_json import unpacked_run
from tests.support.commands import benchmark_ladder
from tests.support.record_command import RUNGS, spy

TINY = ["--device", "cpu", "--num-requests", "2", "--max-new-tokens", "4", "--rounds", "2"]
TWO = ["--lessons", "069,035"]  # in whichever order


@pytest.fixture(autouse=True)
def quick(monkeypatch, model):
    monkeypatch.setattr("rosecourse.measure.floor.copy_bandwidth", lambda device: 1e10)
    monkeypatch.setattr(engines, "model_of", lambda flags: model)


def test_a_table_a_file_and_a_picture(tmp_path, capsys):
    file, png = tmp_path / "out.json", tmp_path / "out.png"
    argv = [*TINY, *TWO, "--workloads", "A,C", "--json", str(file), "--picture", str(png)]
    assert benchmark_ladder.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 7
    assert lines[0] == ("=== A: 2 completions, batch 2 (scheduler); 2 rungs, 2 rounds after one that warms up ===")
    assert re.fullmatch(r"  warmed up; the rounds that count take about \d+ s", lines[1])
    assert lines[5] == "N: 8 tokens a run, same tokens on every rung"
    assert lines[6].startswith(
        "On: 2 requests x 4 tokens; 1 warm-up and 2 counted runs of each, interleaved; tiny-gpt2"
    )
    assert lines[7].startswith("=== C: 2 completions, batch 2 (streaming); 2 rungs")

    found = json.loads(file.read_text())
    assert found["command"] == (
        "rosecourse benchmark_ladder --lessons 069,035 --rounds 2 --num-requests 2 --max-new-tokens 4 --device cpu"
    )
    assert str(tmp_path) not in file.read_text()
    assert {"commit", "dirty", "host", "versions", "units", "definitions"} <= found.keys()
    assert list(found["workloads"]) == ["A", "C"]
    of_a = found["workloads"]["A"]
    assert (of_a["same_tokens"], of_a["rounds"], of_a["copy_bytes_per_second"]) == (True, 2, 1e10)
    assert list(of_a["titles"].items()) == [(n, lesson(n).title) for n in ("035", "069")]
    assert (of_a["settings"]["benchmark"], of_a["settings"]["max_seq_len"]) == ("benchmark_scheduler", 7)
    check_the_table(lines[2:5], of_a)
    assert imread(png).shape[1] == 11 * 144


def check_the_table(lines, document):
    """The table says what the file's samples say."""
    sides = {n: Samples(n, [unpacked_run(run) for run in runs]) for n, runs in document["rungs"].items()}
    for line, (number, side) in zip(lines[1:], sides.items(), strict=True):
        sizes = [run["decode_bytes"] for run in document["rungs"][number]]
        share = share_of_runs(side.runs, sizes, 1e10)
        assert line.startswith(f"{number} {lesson(number).title}  ")
        assert float(line.split()[-1]) == pytest.approx(1 / share, rel=1e-2)  # the file has whole microseconds
        assert abs(int(re.search(r"  ([\d,]+)  ", line).group(1).replace(",", "")) - side.throughput.value) <= 1
    gain = ratio(sides["035"].seconds, sides["069"].seconds)
    told = [float(found) for found in re.findall(r"  ([\d.]+)x \[", lines[2])]
    assert told == [pytest.approx(gain.value, abs=6e-3), pytest.approx(gain.value, abs=2e-3)]
    assert "too few pairs to tell, take 5 or more" in lines[2]


def test_all_rungs_take_turns(monkeypatch, capsys):
    order = spy(monkeypatch)
    assert benchmark_ladder.main([*TINY, "--workloads", "A", "--from", "066"]) == 0
    later = RUNGS[RUNGS.index("066") :]
    assert order == [*later, *later[::-1], *later]
    assert capsys.readouterr().out.count("x [") == 2 * (len(later) - 1)  # to the first, and to the one before


def test_tokens_that_differ_end_it(monkeypatch, capsys):
    def change(run, number):
        run.completions[0][0] += number == 2

    spy(monkeypatch, change)
    assert benchmark_ladder.main([*TINY, *TWO, "--workloads", "A"]) == 2
    captured = capsys.readouterr()
    assert "tokens/s" not in captured.out
    assert captured.err.startswith("rosecourse benchmark_ladder: error: the engines give different tokens")


@pytest.mark.grid
@pytest.mark.parametrize(("short", "told"), [(False, ""), (True, "; one engine at a time, as memory is short")])
def test_where_memory_is_short_there_is_one_engine_at_a_time(short, told, monkeypatch, capsys):
    asked = []

    def holding_for(model, config, count):
        asked.append((config.max_batch_size, count))
        return one_at_a_time if short else all_kept

    order = spy(monkeypatch)
    monkeypatch.setattr("rosecourse.measure.holding.holding_for", holding_for)
    assert benchmark_ladder.main([*TINY, *TWO, "--workloads", "A", "--rounds", "1"]) == 0
    assert asked == [(2, 2)]
    out = capsys.readouterr().out
    assert out.splitlines()[0] == (
        f"=== A: 2 completions, batch 2 (scheduler); 2 rungs, 1 round after one that warms up{told} ==="
    )
    assert out.count("warmed up") == 1
    assert len(order) == (8 if short else 4)


def test_the_forecast_is_of_the_rounds_that_count(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(climbing.time, "perf_counter", lambda: now[0])

    def runner(engine, workload):
        now[0] += 2

    forecast = climbing.Forecast(runner, runs=3, rounds=5)
    said = []
    for _ in range(18):
        forecast(None, None)
        said.append(capsys.readouterr().out)
    assert said == ["", "", "  warmed up; the rounds that count take about 30 s\n", *[""] * 15]


def test_mixed_traffic_comes_all_at_once(monkeypatch, capsys):
    monkeypatch.setattr(
        tasks, "D_SMALL", MixedTraffic(num_requests=3, max_batch_size=2, num_blocks=60, new_tokens=(3, 6))
    )
    assert benchmark_ladder.main([*TINY, *TWO, "--workloads", "D", "--rounds", "1"]) == 0
    assert capsys.readouterr().out.startswith("=== D-burst: ")


# -- sizes and rungs ----------------------------------------------------------------------------------------------


def tasks_of(model, rungs, *flags):
    with benchmark_ladder.context(flags) as context:
        return tasks.on_this_device(Flags(**context.params), model, rungs)


def test_on_a_cpu_every_size_is_a_quarter_of_the_articles(model):
    rungs = (LESSONS[0], LESSONS[1])
    small, given = (
        tasks_of(model, rungs, *flags)
        for flags in (("--workloads", "A,E"), ("--workloads", "A", "--num-requests", "3"))
    )
    assert [task.name for task in small] == ["A", "E"]
    assert all(task.rungs == rungs for task in small)
    assert (small[0].config.max_batch_size, small[0].config.max_seq_len) == (16, 3 + 128)
    assert len(small[0].workload.prompts) == 16
    assert len(small[1].workload.prompts) == 4 * 8
    assert len(given[0].workload.prompts) == 3
    for name, work in ARTICLES.items():
        assert (SMALL[name].benchmark, SMALL[name].samples, SMALL[name].readers) == (
            work.benchmark,
            work.samples,
            work.readers,
        )
    assert str(A.a_quarter) == "16 requests x 128 tokens, batch 16 (scheduler)"


@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        ([], RUNGS),
        (["--lessons", "061, 035,061"], ["035", "061"]),
        (["--lessons", "best,035"], ["035", RUNGS[-1]]),
        (["--to", "059"], RUNGS[: RUNGS.index("059") + 1]),
        (["--from", "060", "--to", "062"], ["060", "061", "062"]),
    ],
)
def test_rungs_are_named_or_between_two(flags, numbers):
    assert climbing.numbers_of(benchmark_ladder.flags(*flags)) == numbers


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lessons", "042"], "Invalid value for '--lessons': '042' is not one of '035'"),
        (["--lessons", ""], "Invalid value for '--lessons': '' is not one of"),
        (["--lessons", "035"], "a ladder of 1 rung has nothing to compare: name 2 or more"),
        (["--from", "061", "--to", "060"], "a ladder of 0 rungs has nothing to compare"),
        (["--from", "04"], "Invalid value for '--from': '04' is not one of"),
        (["--lessons", "035,036", "--to", "060"], "--lessons names each rung: leave --from and --to out"),
        (["--workloads", "steps"], "'steps' is not one of 'A', 'B', 'C', 'E'"),
        (["--rounds", "0"], "0 is not in the range 1<=x"),
        (["--max-new-tokens", "1"], "1 is not in the range 2<=x"),
        (["--max-new-tokens", "600"], "600 new ones do not fit into the model's 512"),
        (["--prompt", ""], "the prompt is empty"),
        (["--picture", "x.svg"], "--picture x.svg is no PNG: give a name that ends in .png"),
        (["--picture", "no/x.png"], "--picture no/x.png cannot be written: No such file or directory"),
        (["--json", "no/x.json"], "--json no/x.json cannot be written: No such file or directory"),
    ],
    ids=" ".join,
)
def test_a_bad_call_costs_one_line_and_no_run(flags, message, tmp_path, monkeypatch, capsys):
    def never(*_):
        raise AssertionError("the work has begun")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(InferenceEngine, "__init__", never)
    assert benchmark_ladder.main(["--device", "cpu", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rosecourse benchmark_ladder: error: ")
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_on_a_gpu_the_model_is_the_articles(monkeypatch):
    monkeypatch.setattr(engines, "resolve_device", lambda device: torch.device("cuda"))
    assert engines.of_the_articles(benchmark_ladder.flags()).random_weights == "gpt2"
    assert engines.of_the_articles(benchmark_ladder.flags("--hf-model-id", "x")).random_weights is None


def test_the_picture_has_all_ladders(model):
    ladders = [
        MeasuredLadder.of(model, task, 1, 1e10)
        for task in tasks_of(
            model, tuple(LESSONS[:2]), "--workloads", "A,F", "--num-requests", "1", "--max-new-tokens", "2"
        )
    ]
    one, two = (imread_bytes(drawn_ladders(some)) for some in (ladders[:1], ladders))
    assert two[0] == pytest.approx(2 * one[0], abs=2)
    assert one[1] == two[1]
    assert list(ladders[0].table()["share of the floor (%)"]) == pytest.approx(
        100 * np.asarray(ladders[0].shares_of_floor)
    )


def imread_bytes(content):
    """Height and width of a PNG."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[20:24], "big"), int.from_bytes(content[16:20], "big")
