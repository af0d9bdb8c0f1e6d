"""A bad call of a command costs one line and exit code 2, and nothing is lost by it."""

import json

import pytest
from transformers import LlamaConfig

from rosecourse import LESSONS, lesson
from rosecourse.commands import (
    generate,
)
from rosecourse.commands.flags import add_engine_flags
from rosecourse.commands.parser import command_parser
from rosecourse.commands.work.building import config_of
from rosecourse.records.json_file import require_writable_json, write_json
from tests.support.commands import COMMANDS

EVERYWHERE = [
    (["--lesson", "042"], "there is no lesson '042': give one of 035"),
    (["--hf-model-id", "/no/such/folder"], "there is no model folder '/no/such/folder'"),
    (["--hf-model-id", "gpt2", "--random-weights", "gpt2"], "not allowed with argument"),
    (["--random-weights", "gpt9"], "no random model is called 'gpt9'"),
    (["--device", "cuda:99"], "there is no 'cuda:99' on this machine"),
    (["--device", "tpu"], "no device is called 'tpu'"),
    (["--dtype", "float64"], "invalid choice: 'float64'"),
    (["--max-new-tokens", "0"], "max_new_tokens is 0: give 1 or more"),
    (["--max-new-tokens", "513"], "max_new_tokens is 513: after a prompt of"),
    (["--max-new-tokens", "many"], "invalid int value: 'many'"),
    (["--block-size", "3"], "block_size is 3: give a power of two"),
    (["--num-blocks", "0"], "num_blocks is 0"),
    (["--num-blocks", "1", "--block-size", "2", "--max-new-tokens", "4"], "KV blocks, the pool has 1"),
    (["--prompt", ""], "the prompt is empty"),
    (["--prompt", "word " * 600], "the engine takes at most"),
    (["--seed", "-1"], "seed is -1"),
    (["--json", "/no/such/folder/x.json"], "cannot be written: No such file or directory"),
    (["--json", "/"], "is a folder"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
    (["--paged-attn", "--dense"], "argument --dense: not allowed with argument --paged-attn"),
    (["--dense", "--paged-attn"], "argument --paged-attn: not allowed with argument --dense"),
    *(
        (flags, f"--dense goes with lessons 035 to 061, and this is lesson {number}: add --lesson 061, or leave")
        for flags, number in [
            (["--dense"], lesson("best").number),
            *((["--dense", "--lesson", rung.number], rung.number) for rung in LESSONS if rung.number > "061"),
        ]
    ),
]
GENERATE = [
    (["--temperature", "-1"], "temperature is -1.0"),
    (["--temperature", "nan"], "temperature is nan"),
    (["--top-p", "0"], "top_p is 0.0"),
    (["--top-p", "1.5"], "top_p is 1.5"),
    (["--top-k", "-1"], "top_k is -1"),
    (["--samples", "0"], "samples is 0: give 1 or more"),
    (["--samples", "1000001"], "samples is 1000001: give at most 1000000"),
]
BENCHMARKS = [
    (["--max-batch-size", "0"], "max_batch_size is 0: give 1 or more"),
    (["--prefill-max-batch-size", "0"], "prefill_max_batch_size is 0: give 1 or more"),
    (["--num-requests", "0"], "num_requests is 0: give 1 or more"),
    (["--repeat-runs", "0"], "repeat_runs is 0: give 1 or more"),
    (["--warmup-runs", "-1"], "warmup_runs is -1: give 0 or more"),
    (["--tokenize-workers", "-1"], "tokenize_workers is -1: give 0 or more"),
    (["--prefill-admission-policy", "lifo"], "invalid choice: 'lifo'"),
]
BAD_CALLS = [
    *(("generate", *case) for case in EVERYWHERE + GENERATE),
    *(("benchmark_scheduler", *case) for case in EVERYWHERE + BENCHMARKS),
    *(("benchmark_streaming", *case) for case in BENCHMARKS),
    ("generate", [], "the following arguments are required: --prompt"),
    ("benchmark_scheduler", ["--mode", "sideways"], "invalid choice: 'sideways'"),
    ("benchmark_scheduler", ["--samples", "0"], "samples is 0: give 1 or more"),
    ("benchmark_streaming", ["--samples", "2"], "unrecognized arguments: --samples 2"),
    ("benchmark_streaming", ["--submit-interval-ms", "-1"], "submit_interval_ms is -1.0: give 0 or more"),
    ("benchmark_streaming", ["--submit-interval-ms", "nan"], "submit_interval_ms is nan: give 0 or more"),
]


def assert_refused(name, flags, message, capsys):
    prompt = [] if name != "generate" or "--prompt" in flags or not flags else ["--prompt", "Hello"]
    device = [] if "--device" in flags or not flags else ["--device", "cpu"]
    assert COMMANDS[name].main([*prompt, *device, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith(f"rosecourse {name}: error: ")
    assert message in captured.err


@pytest.mark.parametrize(
    ("name", "flags", "message"), BAD_CALLS, ids=lambda x: x if isinstance(x, str) else " ".join(x)[:40]
)
def test_a_bad_call_costs_one_line_and_exit_code_2(name, flags, message, capsys):
    assert_refused(name, flags, message, capsys)


def test_models_that_cannot_be_loaded(capsys, tmp_path, monkeypatch):
    LlamaConfig(num_hidden_layers=1).save_pretrained(tmp_path / "llama")
    (tmp_path / "empty").mkdir()
    assert_refused("generate", ["--hf-model-id", str(tmp_path / "llama")], "is a 'llama' model", capsys)
    assert_refused("generate", ["--hf-model-id", str(tmp_path / "empty")], "holds no model", capsys)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused("generate", ["--hf-model-id", "someone/nothing"], "a hub id needs the network once", capsys)


def test_an_unwritable_json_is_found_before_the_run(capsys, monkeypatch):
    def never(*_):
        raise AssertionError("the work has begun")

    monkeypatch.setattr("rosecourse.commands.work.generate.model_of", never)
    assert_refused("generate", ["--json", "/no/such/folder/x.json"], "cannot be written", capsys)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "old.json"
    file.write_text("old")
    require_writable_json(file)
    assert file.read_text() == "old"
    for broken in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(file, broken)
        assert file.read_text() == "old"
        assert list(tmp_path.iterdir()) == [file]
    write_json(file, {"x": 1})
    assert json.loads(file.read_text()) == {"x": 1}


def test_the_environment_is_read_at_the_edge(capsys, monkeypatch):
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "lots")
    assert_refused("benchmark_scheduler", ["--pretok"], "ROSELLM_TRITON_KV_APPEND_MIN_BATCH is 'lots'", capsys)
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "0")
    assert_refused("benchmark_scheduler", ["--pretok"], "triton_kv_append_min_batch is 0", capsys)
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "64")
    parser = command_parser("x", "")
    add_engine_flags(parser)
    assert config_of(parser.parse_args([])).triton_kv_append_min_batch == 64


def test_interrupted(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rosecourse.commands.work.generate.model_of", interrupt)
    assert generate.main(["--prompt", "x"]) == 130
