"""Nothing that the engine computes depends on PyTorch's settings of the whole process, or of the thread."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    SamplingParams,
    SchedulerManager,
    load_model,
    random_model,
)
from rosecourse.kv.guards import settings_aside
from rosecourse.lessons import LESSONS
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.models.load import from_transformers

PROMPTS = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 9, 8], [7], [1, 2, 3, 4, 5, 6, 7]]
GREEDY = SamplingParams(max_new_tokens=6, stop_on_eos=False)
DRAWN = SamplingParams(max_new_tokens=6, stop_on_eos=False, temperature=0.9, top_k=40, top_p=0.9, seed=7)
PARAMS = [GREEDY, DRAWN, GREEDY, DRAWN]
TIGHT = EngineConfig(max_batch_size=4, block_size=4, num_blocks=12, max_seq_len=32)  # prefix hits, preemption


@contextmanager
def setting(set_it, value, back):
    set_it(value)
    try:
        yield
    finally:
        set_it(back)


def dtype(value):
    return setting(torch.set_default_dtype, value, torch.get_default_dtype())


def deterministic():
    return setting(torch.use_deterministic_algorithms, True, False)


def precision():
    return setting(torch.set_float32_matmul_precision, "medium", "highest")


SETTINGS = {
    "float64": lambda: dtype(torch.float64),
    "float16": lambda: dtype(torch.float16),
    "meta": lambda: setting(torch.set_default_device, "meta", None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "grad": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "precision": precision,
}
PLAIN = nullcontext
ENDS = [LESSONS[0], LESSONS[-1]]  # the rungs

# Those of the whole process that an engine puts aside: for a device, how it is set, read and taken back.
PUT_ASIDE = {
    "deterministic": (
        torch.device("cuda"),
        deterministic,
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "precision": (
        torch.device("cpu"),
        precision,
        lambda: torch.backends.mkldnn.matmul.fp32_precision,
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
}


def loaded(hf, model):
    return from_transformers(hf, model.tokenizer)


def everything(engine, around):
    """What an engine makes: tokens by all ways to ask for them, and the logits of a prefill and of a step."""
    with around():
        made = [generation.token_ids for generation in engine.generate(PROMPTS, PARAMS)]
        made += [generation.token_ids for generation in engine.generate(PROMPTS[:1], DRAWN, n=3)]
        made += [[token.token_id for token in engine.stream(PROMPTS[3], DRAWN)]]
        session = engine.new_session(PROMPTS[0], DRAWN)
        logits = engine.prefill([session])
        engine.take_tokens([session], logits)
        fork = engine.fork(session)
        step = engine.decode_step_sessions([session, fork])
        engine.take_tokens([session, fork], step)
        made += [session.token_ids, fork.token_ids]
        engine.free(session)
        engine.free(fork)
        with SchedulerManager(OnlineScheduler(engine)) as manager:
            streams = [manager.submit(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
            made += [[token.token_id for token in stream] for stream in streams]
    return made, logits.clone(), step.clone()


def assert_equal(found, expected):
    assert found[0] == expected[0]
    for logits, right in zip(found[1:], expected[1:], strict=True):
        assert logits.dtype == right.dtype == torch.float32
        assert torch.equal(logits, right)


@pytest.fixture(scope="module")
def expected(small_pair, model):
    return {
        rung.number: everything(InferenceEngine(loaded(small_pair[0], model), TIGHT, rung.after), PLAIN)
        for rung in ENDS
    }


@pytest.mark.parametrize("rung", ENDS, ids=lambda rung: rung.number)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_process_changes_nothing(setting, rung, expected, small_pair, model):
    """Set before the engine is made, and around its use: by an engine of its own, whose prefix cache is empty too."""
    with SETTINGS[setting]():
        made_under_it = InferenceEngine(loaded(small_pair[0], model), TIGHT, rung.after)
    assert_equal(everything(made_under_it, PLAIN), expected[rung.number])
    used_under_it = InferenceEngine(small_pair[1], TIGHT, rung.after)
    assert_equal(everything(used_under_it, SETTINGS[setting]), expected[rung.number])


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("setting", PUT_ASIDE)
def test_a_setting_is_put_back_unless_somebody_has_changed_it(setting, changes):
    """When the last engine has computed."""
    device, set_it, read, change = PUT_ASIDE[setting]
    with set_it():
        expected = read()
        with settings_aside(device):
            with settings_aside(device):
                assert read() != expected
            assert read() != expected
            if changes:
                change()
                expected = read()
        assert read() == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_model_is_loaded_as_it_is(setting, model, monkeypatch):
    monkeypatch.setitem(load.RANDOM_SHAPES, "small", GPT2Shape(96, 32, 16, 2, 2))
    right = random_model("small", device="cpu").weights
    with SETTINGS[setting]():
        found, shipped = random_model("small", device="cpu").weights, load_model(device="cpu").weights
    assert all(torch.equal(found[name], weight) for name, weight in right.items())
    assert all(torch.equal(shipped[name], weight) for name, weight in model.weights.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "setting", [*sorted({*SETTINGS} - {"precision"}), "cuda autocast"]
)  # TF32 is a GPU user's choice
@pytest.mark.parametrize("rung", ENDS, ids=lambda rung: rung.number)
def test_a_setting_of_the_process_changes_nothing_on_a_gpu(setting, rung, small_pair, model):
    set_it = SETTINGS.get(setting, lambda: torch.autocast("cuda", torch.bfloat16))
    on_gpu = from_transformers(small_pair[0], model.tokenizer, "small", torch.float32, "cuda")
    expected = everything(InferenceEngine(on_gpu, TIGHT, rung.after), PLAIN)
    with set_it():
        engine = InferenceEngine(on_gpu, TIGHT, rung.after)
    for around in (PLAIN, set_it):
        tokens, *logits = everything(engine, around)
        assert tokens == expected[0]
        for found, right in zip(logits, expected[1:], strict=True):
            torch.testing.assert_close(found, right)
