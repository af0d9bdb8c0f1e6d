"""Any value, given to any public constructor or call: it works, or an exception of ours names it on one line."""

import warnings
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    OfflineScheduler,
    OnlineScheduler,
    RosecourseError,
    SamplingParams,
    SchedulerManager,
    lesson,
    load_model,
    random_model,
)
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape


class Odd:
    """A class is a value, too."""


ODD = [True, False, None, 0, 1, -1, 2, 3, 64, -0.0, 0.5, 2.0, float("nan"), float("inf"), 1j]
ODD += [2**31, 2**62, 2**63, 10**30, -(2**70), 10**400, 10**5000, Decimal(1), Decimal("NaN"), Fraction(1, 2)]
ODD += [np.int64(4), np.int8(64), np.uint8(3), np.bool_(True), np.float32(0.5), np.array(4), np.array([1, 2])]
ODD += [torch.tensor(4), torch.tensor([1, 2]), "", "4", "é\ud800\n", "x" * 5000, b"x", "\0", "036", "cpu", "no\nsuch"]
ODD += [[], [1], [True], [1.0], [None], ["a", 1], [[1, 2], "x"], (), {}, {1}, range(3), object(), Odd, len, Path("x")]
values = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
TWO = SamplingParams(max_new_tokens=2)


@pytest.fixture(scope="module")
def engine(small_model):
    config = EngineConfig(block_size=4, max_batch_size=2, max_seq_len=40, num_blocks=20)
    return InferenceEngine(small_model, config)


@pytest.fixture(scope="module", autouse=True)
def small_machine():
    """No network, and random models that take no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(load, "RANDOM_SHAPES", {"gpt2": GPT2Shape(64, 16, 8, 1, 1)})
        yield


def scheduled(kind, engine, **options):
    """A scheduler with these options runs one request to its end."""
    scheduler, session = kind(engine, **options), engine.new_session([1, 2], TWO)
    scheduler.submit(session)
    try:
        for _ in range(4):
            scheduler.step()
    finally:
        scheduler.cancel(session)


def forked(engine, params):
    session = engine.new_session([1, 2, 3], TWO)
    engine.prefill([session])
    try:
        engine.free(engine.fork(session, params))
    finally:
        engine.free(session)


def streamed(engine, prompt=(1, 2), params=TWO, **more):
    with SchedulerManager(OnlineScheduler(engine)) as manager:
        list(manager.submit(prompt, params, **more))


def small(model, **changed):
    config = EngineConfig(**({"block_size": 4, "max_batch_size": 2, "max_seq_len": 40, "num_blocks": 20} | changed))
    InferenceEngine(model, config).generate([1, 2], TWO)


CALLS = {
    "InferenceEngine(model)": lambda engine, value: InferenceEngine(value),
    "InferenceEngine(config)": lambda engine, value: InferenceEngine(engine.model, value),
    "InferenceEngine(parts)": lambda engine, value: InferenceEngine(engine.model, engine.config, value),
    "generate(prompts)": lambda engine, value: engine.generate(value, TWO),
    "generate([prompt])": lambda engine, value: engine.generate([[1], value], TWO),
    "generate(params)": lambda engine, value: engine.generate([1, 2], value),
    "generate([params])": lambda engine, value: engine.generate([[1, 2]], [value]),
    "stream(prompt)": lambda engine, value: list(engine.stream(value, TWO)),
    "stream(params)": lambda engine, value: list(engine.stream([1, 2], TWO if value is None else value)),
    "prefill": lambda engine, value: engine.prefill(value),
    "decode": lambda engine, value: engine.decode_step_sessions(value),
    "audit": lambda engine, value: engine.audit(value),
    "fork(session)": lambda engine, value: engine.fork(value),
    "fork(params)": forked,
    "free": lambda engine, value: engine.free(value),
    "OnlineScheduler(engine)": lambda engine, value: OnlineScheduler(value),
    "submit": lambda engine, value: OnlineScheduler(engine).submit(value),
    "cancel": lambda engine, value: OnlineScheduler(engine).cancel(value),
    "SchedulerManager(scheduler)": lambda engine, value: SchedulerManager(value),
    "manager.submit(prompt)": lambda engine, value: streamed(engine, value),
    "manager.submit(params)": lambda engine, value: streamed(engine, params=TWO if value is None else value),
    "manager.submit(scheduled)": lambda engine, value: streamed(engine, scheduled=value),
    "load_model(name)": lambda engine, value: value is None or load_model(value, device="cpu"),
    "load_model(dtype)": lambda engine, value: value is None or load_model(dtype=value, device="cpu"),
    "load_model(device)": lambda engine, value: load_model(device=value),
    "random_model(name)": lambda engine, value: random_model(value, device="cpu"),
    "random_model(seed)": lambda engine, value: random_model("gpt2", value, device="cpu"),
    "lesson": lambda engine, value: lesson(value),
}
for name in ("max_batch_size", "prefill_max_batch_size"):
    for kind in (OnlineScheduler, OfflineScheduler):
        # What can be called and then fails is the caller's own error.
        CALLS[f"{kind.__name__}({name})"] = lambda engine, value, kind=kind, name=name: (
            callable(value) or scheduled(kind, engine, **{name: value})
        )
for field in fields(EngineConfig):
    CALLS[f"EngineConfig({field.name})"] = lambda engine, value, name=field.name: small(engine.model, **{name: value})
for field in fields(SamplingParams):
    CALLS[f"SamplingParams({field.name})"] = lambda engine, value, name=field.name: engine.generate(
        [1, 2], SamplingParams(**({"max_new_tokens": 2, "temperature": 1.0} | {name: value}))
    )


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_any_value_works_or_is_named_on_one_line(engine, call):
    def check(value):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy's of an overflow, for one
            try:
                call(engine, value)
            except RosecourseError as error:
                text = str(error)
                assert "\n" not in text
                assert 10 < len(text) < 600

    for value in ODD:
        check(value)
    settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))(given(values)(check))()
    engine.audit([])  # whatever was refused, every block is free again, or cached
