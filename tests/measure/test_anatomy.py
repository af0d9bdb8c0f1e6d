"""Where a step's time goes: measured from outside, and drawn."""

import time

import matplotlib.pyplot as plt
import pytest

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.measure.anatomy import decode_anatomy
from rosecourse.pictures.plots import itl_along_steps, step_anatomy


class SleepsWhileAppending(BEST.kv_append):
    def __call__(self, sessions, keys, values):
        time.sleep(0.02)
        super().__call__(sessions, keys, values)


@pytest.fixture
def figure():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_time_is_counted_where_it_is_spent_and_the_engine_is_left_as_it_was(small_model):
    parts = BEST.with_(kv_append=SleepsWhileAppending)
    engine = InferenceEngine(small_model, EngineConfig(prefix_cache=False), parts)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    seconds = decode_anatomy(engine, [session], steps=4)
    assert list(seconds) == [*engine.decode_step.stages, "rest"]
    assert all(len(samples) == 4 for samples in seconds.values())
    assert min(seconds["kv_append"]) >= 0.02
    assert all(value > 0 for samples in seconds.values() for value in samples)
    assert type(engine.decode_step.kv_append) is SleepsWhileAppending
    assert len(session.completion_ids) == 5


def test_the_bar_shows_medians_in_milliseconds(figure):
    step_anatomy(figure, {"forward": [0.001, 0.002, 0.9], "kv_append": [0.003]}, "title")
    assert [round(bar.get_width(), 6) for bar in figure.patches] == [2.0, 3.0]
    assert [text.get_text() for text in figure.get_legend().get_texts()] == ["forward: 2.00 ms", "KV append: 3.00 ms"]


def test_itl_is_drawn_in_milliseconds_with_the_block_boundaries(figure):
    itl_along_steps(figure, [0.001] * 9 + [0.005], first_position=3, block_size=4, title="title")
    boundaries = [line.get_xdata()[0] for line in figure.lines if line.get_linestyle() == ":"]
    assert boundaries == [4, 8, 12]
    (curve,) = (line for line in figure.lines if len(line.get_xdata()) == 10)
    assert (list(curve.get_xdata()), max(curve.get_ydata())) == (list(range(3, 13)), 5.0)
    assert "p50 1.00 ms" in [text.get_text() for text in figure.get_legend().get_texts()]
