"""Prefill: what goes to the device, and that nobody waits for it. Its results are compared in other files."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, random_model
from rosecourse.decode import prefill as module
from rosecourse.kv import blocks as one_table
from tests.support.oracles import prompts_of

PARAMS = SamplingParams(max_new_tokens=2)


def sessions_of(engine, stem, lengths, params=PARAMS):
    """A prefilled stem, and sessions to prefill: one that hits all of the stem, one half of it, and new ones."""
    session = engine.new_session(stem, PARAMS)
    engine.take_tokens([session], engine.prefill([session]))
    prompts = [[*stem, 5, 6], [*stem[: len(stem) // 2], 7], *prompts_of(lengths, 200, seed=1)]
    return [engine.new_session(prompt, params) for prompt in prompts]


@pytest.mark.parametrize("lengths", [[], [3], [3, 3, 8, 1]])
def test_three_index_tensors_go_to_the_device_whatever_the_batch(small_model, lengths):
    """By `index_tensor`, which does not wait; numbers of tokens, rows of logits, and the cache's block tables."""
    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=8))
    sessions = sessions_of(engine, prompts_of([16], 200)[0], lengths)
    with (
        patch.object(module, "index_tensor", wraps=module.index_tensor) as index_tensor,
        patch.object(one_table, "index_tensor", index_tensor),
        patch.object(torch, "tensor", wraps=torch.tensor) as tensor,
    ):
        engine.prefill(sessions)
    assert index_tensor.call_count == tensor.call_count == 3
    assert [session.num_cached_tokens for session in sessions] == [18, 9, *lengths]
    (rows,) = [call.args[0] for call in index_tensor.call_args_list if isinstance(call.args[0][0], int)]
    computed = [2, 1, *lengths]
    assert rows == [sum(computed[: n + 1]) - 1 for n in range(len(computed))]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_starts_without_waiting_for_the_device(dtype, temperature):
    """Its prefill, its first token and the step that takes it from there: nothing is read before all are told."""
    engine = InferenceEngine(random_model("gpt2", dtype=dtype), EngineConfig(max_batch_size=8))
    (stem, again) = prompts_of([128, 128], 200)

    def start(sessions):
        assert not engine.begin(sessions, engine.prefill(sessions)).new_tokens
        engine.launch(sessions)

    for prompt, mode in ((stem, "default"), (again, "error")):  # whatever is set up once is set up the first time
        sessions = sessions_of(engine, prompt, [3, 3, 64, 65], replace(PARAMS, temperature=temperature))
        torch.cuda.set_sync_debug_mode(mode)
        try:
            start(sessions)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert engine.num_in_flight == 2
        engine.settle()
        assert [len(session.completion_ids) for session in sessions] == [2] * 6
        for session in sessions:
            engine.free(session)
