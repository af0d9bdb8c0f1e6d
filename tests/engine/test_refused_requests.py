"""Requests, configs and params that an engine can never serve are refused by name, before anything is made."""

import pytest

from rosecourse import ConfigError, EngineConfig, InferenceEngine, RequestError, SamplingParams


def make_engine(model, **config):
    return InferenceEngine(
        model, EngineConfig(**{"block_size": 4, "max_batch_size": 8, "prefix_cache": False} | config)
    )


BAD_REQUESTS = [
    ([], {}, "the prompt is empty"),
    ("", {}, "the prompt is empty"),
    ([1] * 96, {"max_new_tokens": 1}, "the prompt has 96 tokens: the engine takes at most 95"),
    ([1] * 90, {"max_new_tokens": 7}, "max_new_tokens is 7: after a prompt of 90 tokens at most 6 fit into 96"),
    ([211], {}, "token id 211 is not in the vocabulary of 211 tokens"),
    ([-1], {}, "token id -1"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), BAD_REQUESTS)
def test_a_request_that_can_never_be_served_is_refused(small_model, prompt, params, message):
    engine = make_engine(small_model)
    with pytest.raises(RequestError, match=message):
        engine.new_session(prompt, SamplingParams(**params))
    with pytest.raises(RequestError, match=message):
        engine.stream(prompt, SamplingParams(**params))


def test_a_request_larger_than_the_pool_is_refused(small_model):
    engine = make_engine(small_model, num_blocks=3)
    engine.new_session([1] * 5, SamplingParams(max_new_tokens=8))
    with pytest.raises(RequestError, match="need 4 KV blocks, the pool has 3"):
        engine.new_session([1] * 5, SamplingParams(max_new_tokens=9))
    (whole,) = engine.generate([[1] * 5], SamplingParams(max_new_tokens=8, stop_on_eos=False))
    assert len(whole.token_ids) == 8


BAD_CONFIGS = [
    {"block_size": 0},
    {"block_size": 3},
    {"block_size": 2.0},
    {"max_batch_size": 0},
    {"max_batch_size": True},
    {"max_seq_len": 1},
    {"max_seq_len": 97},
    {"num_blocks": 0},
]


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
def test_an_impossible_config_is_refused_by_name(small_model, config):
    (name,) = config
    with pytest.raises(ConfigError, match=f"{name} is {config[name]!r}"):
        make_engine(small_model, **config)


BAD_PARAMS = [
    {"max_new_tokens": 0},
    {"max_new_tokens": 1.5},
    {"temperature": -0.1},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": "hot"},
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_p": float("nan")},
    {"seed": -1},
]


@pytest.mark.parametrize("params", BAD_PARAMS, ids=str)
def test_impossible_params_are_refused_by_name(params):
    (name,) = params
    with pytest.raises(ConfigError, match=f"{name} is "):
        SamplingParams(**params)
