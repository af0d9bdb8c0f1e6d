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
)
from rosecourse.lessons import LESSONS
from tests.support.small_models import from_transformers

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


SETTINGS = {
    "float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: setting(torch.set_default_dtype, torch.float16, torch.float32),
    "meta": lambda: setting(torch.set_default_device, "meta", None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "grad": torch.enable_grad,
    "inference mode": torch.inference_mode,
}


def everything(engine, around=nullcontext):
    """What an engine makes: tokens by all ways to ask for them, and the logits of a prefill and of a step."""
    with around():
        made = [generation.token_ids for generation in engine.generate(PROMPTS, PARAMS)]
        made += [generation.token_ids for generation in engine.generate(PROMPTS[:1], DRAWN, n=3)]
        made += [[token.token_id for token in engine.stream(PROMPTS[3], DRAWN)]]
        session = engine.new_session(PROMPTS[0], DRAWN)
        logits = engine.prefill([session])
        engine.take_tokens([session], logits)
        step = engine.decode_step_sessions([session, engine.fork(session)])
        with SchedulerManager(OnlineScheduler(engine)) as manager:
            streams = [manager.submit(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
            made += [[token.token_id for token in stream] for stream in streams]
    return made, logits.clone(), step.clone()


GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
ON_A_GPU = [*sorted({*SETTINGS} - {"deterministic"}), "cuda autocast"]


@pytest.mark.parametrize("rung", [LESSONS[0], LESSONS[-1]], ids=lambda rung: rung.number)
@pytest.mark.parametrize(
    ("device", "setting"), [("cpu", s) for s in SETTINGS] + [pytest.param("cuda", s, marks=GPU) for s in ON_A_GPU]
)
def test_setting_of_the_process_changes_nothing(device, setting, rung, small_pair, model):
    """Set before the engine is made, and around its use: by an engine of its own, whose prefix cache is empty too."""
    set_it = SETTINGS.get(setting, lambda: torch.autocast("cuda", torch.bfloat16))

    def engine():
        loaded = from_transformers(small_pair[0], model.tokenizer, "small", torch.float32, device)
        return InferenceEngine(loaded, TIGHT, rung.after)

    tokens, *expected = everything(engine())
    with set_it():
        made_under_it = engine()
    for found_tokens, *found in (everything(made_under_it), everything(engine(), set_it)):
        assert found_tokens == tokens
        for logits, right in zip(found, expected, strict=True):
            assert logits.dtype == right.dtype == torch.float32
            assert torch.equal(logits, right) if device == "cpu" else torch.allclose(logits, right, 1e-5, 1e-5)
