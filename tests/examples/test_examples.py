"""The scripts under examples/: each does what its first lines say. They run in this process, on the shipped model."""

import asyncio
import re
import runpy
import shutil
from pathlib import Path

import pytest

import rosecourse as rc
from rosecourse.models.load import SHIPPED_MODEL

EXAMPLES = Path(__file__).parents[2] / "examples"


def names_of(script):
    """What a script defines, without its `main` being called."""
    return runpy.run_path(str(EXAMPLES / script), run_name="example")


@pytest.fixture
def example(request, model, monkeypatch):
    """A script, whose model is loaded already."""
    monkeypatch.setattr(rc, "load_model", lambda folder=None: model, raising=False)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    return names_of(request.param)


@pytest.mark.parametrize("example", ["deadline.py"], indirect=True)
def test_what_is_late_is_cancelled_and_leaves_no_block_behind(example, model, capsys):
    engine = rc.InferenceEngine(model, rc.EngineConfig(max_batch_size=2, prefix_cache=False))
    scheduler = rc.OnlineScheduler(engine)
    with rc.SchedulerManager(scheduler) as manager:
        late = asyncio.run(example["ask_all"](manager, 0.0))
        in_time = asyncio.run(example["ask_all"](manager, 60.0))
    prompts, params = example["PROMPTS"], example["PARAMS"]
    assert late == [("", False)] * len(prompts)
    assert in_time == [(one.text, True) for one in rc.InferenceEngine(model).generate(prompts, params)]
    assert not engine.kv.blocks_in_use
    assert not scheduler.has_work
    example["main"]()
    out = capsys.readouterr().out
    assert out.count("[whole] ") + out.count("[late] ") == len(prompts)
    assert all(f"] {prompt}" in out for prompt in prompts)


@pytest.mark.parametrize("example", ["samples.py"], indirect=True)
def test_samples_are_those_of_generate_and_share_blocks(example, model, capsys):
    engine = rc.InferenceEngine(model, example["CONFIG"])
    texts, together, alone = example["sample"](engine)
    expected = engine.generate(example["PROMPT"], example["params_of"](0), n=example["SAMPLES"])
    assert texts == [one.text for one in expected]
    whole_blocks = len(model.tokenizer.encode(example["PROMPT"])) // example["CONFIG"].block_size
    assert alone - together == (example["SAMPLES"] - 1) * whole_blocks > 0
    assert not engine.kv.blocks_in_use
    example["main"]()
    assert f"{together} blocks of the cache in use; without sharing it would be {alone}." in capsys.readouterr().out


def test_a_folder_is_benchmarked(tmp_path, monkeypatch):
    folder = shutil.copytree(SHIPPED_MODEL, tmp_path / "mine")
    example = names_of("own_model.py")
    compared = example["benchmark"](str(folder), "038", "best", pairs=1)
    asked = example["REQUESTS"] * example["TOKENS"]
    assert [run.num_tokens for side in compared.sides for run in side.runs] == [asked, asked]
    assert compared.conditions.model == "mine"


@pytest.mark.parametrize("example", ["own_model.py"], indirect=True)
def test_the_benchmark_prints_a_table_and_a_verdict(example, capsys, monkeypatch):
    monkeypatch.setitem(example["main"].__globals__, "PAIRS", 1)
    assert example["main"]([]) == 0
    out = capsys.readouterr().out
    assert "total throughput (tokens/s)" in out
    assert "\nbest against 035: " in out
    assert f"{example['REQUESTS']} requests x" in out
    assert re.search(r"(?m)^ITL p50 \(ms\) +[\d,]+(\.\d\d)? ", out)


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["/no/such/folder"], "there is no model folder '/no/such/folder'"), ([SHIPPED_MODEL, "042"], "no lesson '042'")],
)
def test_what_cannot_be_benchmarked_costs_one_line(argv, said, capsys, monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    assert names_of("own_model.py")["main"]([str(word) for word in argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("own_model.py: ")
    assert said in error
    assert error.count("\n") == 1
