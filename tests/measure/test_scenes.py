"""Scenes: everybody is served, something happens on time, and completions are compared as they should be."""

import pytest

import rosecourse as rc
from rosecourse.measure.scenes import same_completions, served

CONFIG = rc.EngineConfig(block_size=4, max_batch_size=4, max_seq_len=32, num_blocks=40, prefix_cache=False)


def test_all_samples_of_all_requests_are_served(model):
    found, stats = served(rc.InferenceEngine(model, CONFIG), [[1, 2], [3]], samples=2, new_tokens=3)
    assert {name: len(tokens) for name, (tokens, _) in found.items()} == {
        "request 0.0": 3,
        "request 0.1": 3,
        "request 1.0": 4,
        "request 1.1": 4,
    }
    assert stats.decode_steps > 0


def test_something_happens_once_after_so_many_steps(model):
    seen = []

    def cancels(engine, scheduler, sessions):
        seen.append(scheduler.stats.decode_steps)
        scheduler.cancel(sessions["request 1"])

    found, _ = served(rc.InferenceEngine(model, CONFIG), [[1, 2], [3]], does=cancels, after=3)
    assert len(seen) == 1
    assert [reason for _, reason in found.values()] == ["length", "cancelled"]
    assert len(found["request 1.0"][0]) < len(found["request 0.0"][0])


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (([1, 2, 3], "length"), True),
        (([1, 2], "length"), False),
        (([1, 2, 3], "stop"), False),
        (([1, 2], "cancelled"), True),
        (([1, 3], "cancelled"), False),
    ],
)
def test_only_what_was_cancelled_may_be_a_beginning(other, same):
    one = {"a": ([1, 2, 3], "length")}
    assert same_completions(one, {"a": other}) is same
    assert not same_completions(one, {"a": one["a"], "b": other})
