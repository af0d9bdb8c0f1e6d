"""What an engine can never serve is refused by name: requests that do not fit, and settings that cannot be."""

import pytest

from rosecourse import ConfigError, EngineConfig, InferenceEngine, RequestError, SamplingParams
from tests.support.scheduling import make_engine

REQUESTS = [
    ([], {}, "the prompt is empty"),
    ("", {}, "the prompt is empty"),
    ([1] * 96, {"max_new_tokens": 1}, "the prompt has 96 tokens: the engine takes at most 95"),
    ([1] * 90, {"max_new_tokens": 7}, "max_new_tokens is 7: after a prompt of 90 tokens at most 6 fit into 96"),
    ([1] * 5, {"max_new_tokens": 9}, "need 4 KV blocks, the pool has 3"),
    ([211], {}, "token id 211 is not in the vocabulary of 211 tokens"),
    ([-1], {}, "token id -1"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), REQUESTS)
def test_a_request_that_can_never_be_served_is_refused(small_model, prompt, params, message):
    """Hazard 9: and the largest that fits is served."""
    engine = make_engine(small_model, num_blocks=3 if "pool" in message else None)
    for ask in (engine.new_session, engine.stream):
        with pytest.raises(RequestError, match=message):
            ask(prompt, SamplingParams(**params))
    (whole,) = engine.generate([[1] * 5], SamplingParams(max_new_tokens=8, stop_on_eos=False))
    assert len(whole.token_ids) == 8


SETTINGS = {
    EngineConfig: [
        *({"block_size": value} for value in (0, 3, 2.0)),
        *({"max_batch_size": value} for value in (0, True)),
        *({"max_seq_len": value} for value in (1, 97)),
        {"num_blocks": 0},
    ],
    SamplingParams: [
        *({"max_new_tokens": value} for value in (0, 1.5)),
        *({"temperature": value} for value in (-0.1, float("nan"), float("inf"), "hot")),
        {"top_k": -1},
        *({"top_p": value} for value in (0.0, 1.01, float("nan"))),
        {"seed": -1},
    ],
}


@pytest.mark.parametrize(("kind", "setting"), [(kind, one) for kind, all_ in SETTINGS.items() for one in all_], ids=str)
def test_an_impossible_setting_is_refused_by_name(small_model, kind, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        InferenceEngine(small_model, kind(**setting))
