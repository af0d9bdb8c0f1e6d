"""A bad call of a command costs one line and exit code 2, and nothing is lost by it."""

import pytest
from transformers import MistralConfig

from rosecourse.commands.engines import config_of
from tests.support.commands import ALL, benchmark_scheduler

EVERYWHERE = [
    (["--lesson", "042"], "'042' is not one of '035'"),
    (["--hf-model-id", "/no/such/folder"], "there is no model folder '/no/such/folder'"),
    (["--hf-model-id", "gpt2", "--random-weights", "gpt2"], "both name a model: give one of them"),
    (["--random-weights", "gpt9"], "'gpt9' is not one of 'gpt2', 'gpt2-medium'"),
    (["--device", "cuda:99"], "there is no 'cuda:99' on this machine"),
    (["--device", "tpu"], "no device is called 'tpu'"),
    (["--dtype", "float64"], "'float64' is not one of 'float32'"),
    (["--max-new-tokens", "0"], "'--max-new-tokens': 0 is not in the range"),
    (["--max-new-tokens", "513"], "max_new_tokens is 513: after a prompt of"),
    (["--block-size", "3"], "block_size is 3: give a power of two"),
    (["--num-blocks", "1", "--block-size", "2", "--max-new-tokens", "4"], "KV blocks, the pool has 1"),
    (["--prompt", ""], "the prompt is empty"),
    (["--prompt", "word " * 600], "the engine takes at most"),
    (["--nonsense"], "No such option '--nonsense'."),
    (["--num-blocks", "100000000"], "100000000 KV blocks of 64 tokens do not fit into memory"),
    (["--block-size", str(2**62)], "1 KV blocks of 4611686018427387904 tokens do not fit into memory"),
    (["--device", "c\np\nu"], r"no device is called 'c\np\nu'"),
    (["--hf-model-id", "\0"], "no model is called"),
    (["--dense"], "--dense goes with lessons 035 to 061: add --lesson 061, or leave"),
]
GENERATE = [
    (["--temperature", "-1"], "temperature is -1.0"),
    (["--temperature", "nan"], "temperature is nan"),
    (["--top-p", "0"], "top_p is 0.0"),
    (["--top-k", "-1"], "top_k is -1"),
]
BENCHMARKS = [
    (["--max-batch-size", "0"], "'--max-batch-size': 0 is not in the range"),
    (["--num-requests", str(10**6 + 1)], "1000001 is not in the range 1<=x<=1000000"),
    (["--prefill-admission-policy", "lifo"], "'lifo' is not 'fifo'"),
]
TRANSFORMERS = [
    (["--pairs", "1"], "1 is not in the range 2<=x"),
    (["--prompt-tokens", "1000000", "--batch-size", "16"], "the prompt has 1000000 tokens: the engine takes at most"),
    (["--max-new-tokens", "600"], "max_new_tokens is 600"),
]
BAD_CALLS = [
    *(("generate", *case) for case in EVERYWHERE + GENERATE),
    *(("benchmark_scheduler", *case) for case in BENCHMARKS),
    *(("benchmark_streaming", *case) for case in BENCHMARKS),
    *(("benchmark_transformers", *case) for case in TRANSFORMERS),
    ("generate", [], "Missing option '--prompt'. (see --help)"),
    ("generate", ["--promt", "My dear"], "No such option '--promt'. Did you mean '--prompt'? (see --help)"),
    ("benchmark_scheduler", ["--mode", "sideways"], "'sideways' is not one of 'online', 'offline'"),
    ("benchmark_scheduler", ["--readers", "one"], "--readers"),
    ("benchmark_streaming", ["--readers", "two"], "--readers"),
    ("benchmark_streaming", ["--samples", "2"], "No such option '--samples'."),
    ("benchmark_streaming", ["--submit-interval-ms", "-1"], "'--submit-interval-ms': -1.0 is not in the range 0<=x"),
    ("benchmark_streaming", ["--submit-interval-ms", "nan"], "--submit-interval-ms is nan: give a number"),
]


def assert_refused(name, flags, message, capsys):
    prompt = [] if name != "generate" or {"--prompt", "--promt"} & {*flags} or not flags else ["--prompt", "Hello"]
    device = [] if "--device" in flags or not flags or name == "doctor" else ["--device", "cpu"]
    assert ALL[name].main([*prompt, *device, *flags]) == 2
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
    MistralConfig(num_hidden_layers=1).save_pretrained(tmp_path / "mistral")
    (tmp_path / "empty").mkdir()
    assert_refused("generate", ["--hf-model-id", str(tmp_path / "mistral")], "is a 'mistral' model", capsys)
    assert_refused("generate", ["--hf-model-id", str(tmp_path / "empty")], "holds no model", capsys)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused("generate", ["--hf-model-id", "someone/nothing"], "a hub id needs the network once", capsys)


def test_the_environment_is_read_at_the_edge(capsys, monkeypatch):
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "lots")
    assert_refused(
        "benchmark_scheduler",
        ["--pretok"],
        "(env var: 'ROSELLM_TRITON_KV_APPEND_MIN_BATCH'): 'lots' is not a valid",
        capsys,
    )
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "0")
    assert_refused("benchmark_scheduler", ["--pretok"], "0 is not in the range", capsys)
    monkeypatch.setenv("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", "64")
    assert config_of(benchmark_scheduler.flags()).triton_kv_append_min_batch == 64
