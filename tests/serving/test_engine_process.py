"""The loop of the engine process, in this process: what it sends for what it gets."""

from collections import deque

import pytest

from rosecourse import EngineConfig, InferenceEngine, SamplingParams
from rosecourse.serving.engine_process import EngineLoop
from rosecourse.serving.messages import Cancel, Submit
from tests.support.failing import sick_model

GREEDY = SamplingParams(8, stop_on_eos=False)


class OtherEnd:
    """In place of a pipe. commands: (number of messages that have come before, command)."""

    def __init__(self, *commands):
        self.commands, self.steps = deque(commands), []

    def poll(self, timeout):
        due = bool(self.commands) and self.commands[0][0] <= len(self.steps)
        if timeout is None and not due:
            raise EOFError
        return due

    def recv(self):
        return self.commands.popleft()[1]

    def send(self, step):
        self.steps.append(step)

    def tokens(self, number):
        return [(token, reason) for step in self.steps for n, token, reason in step.tokens if n == number]


@pytest.fixture
def loop_of(small_model):
    """Runs a loop with these commands, and gives it with its pipe; no block is left in use."""

    def run(*commands, model=small_model, **config):
        engine = InferenceEngine(model, EngineConfig(**{"block_size": 4, "max_batch_size": 4} | config))
        pipe = OtherEnd(*commands)
        loop = EngineLoop(engine, pipe)
        with pytest.raises(EOFError):
            loop.run()
        assert loop.numbers == {}
        engine.audit([])
        assert pipe.steps[-1].blocks_in_use == 0
        return loop, pipe

    return run


def test_each_step_is_one_message_with_all_its_tokens(loop_of):
    loop, pipe = loop_of(*((0, Submit(n, [n + 1, 2, 3], GREEDY)) for n in range(4)))
    expected = loop.engine.generate([[n + 1, 2, 3] for n in range(4)], GREEDY)
    for n, one in enumerate(expected):
        assert [token for token, _ in pipe.tokens(n)] == one.token_ids
        assert [reason for _, reason in pipe.tokens(n)] == [None] * 7 + ["length"]
    assert [len(step.tokens) for step in pipe.steps] == [4] * 8


def test_cancelled_requests_give_no_more_tokens(loop_of):
    commands = [(0, Submit(0, [1], GREEDY)), (0, Submit(1, [2], GREEDY)), (3, Cancel(0)), (3, Cancel(7))]
    _, pipe = loop_of(*commands, (9, Cancel(1)))
    assert len(pipe.tokens(0)) == 3
    assert len(pipe.tokens(1)) == 8


def test_requests_that_cannot_be_served_get_an_error(loop_of):
    _, pipe = loop_of((0, Submit(0, [], GREEDY)), (0, Submit(1, [1], GREEDY)), (0, Submit(2, [10**9], GREEDY)))
    errors = {number: (status, why) for step in pipe.steps for number, status, why in step.errors}
    assert errors.keys() == {0, 2}
    assert errors[0] == (400, "the prompt is empty: give at least one token")
    assert len(pipe.tokens(1)) == 8


def test_requests_whose_logits_are_nan_get_an_error(loop_of, small_model):
    model = sick_model(small_model, 5)
    _, pipe = loop_of((0, Submit(0, [1, 2, 3], GREEDY)), (0, Submit(1, [1], SamplingParams(2))), model=model)
    assert [(number, status) for step in pipe.steps for number, status, _ in step.errors] == [(0, 500)]
    assert len(pipe.tokens(1)) == 2


def test_a_pool_too_small_for_all_loses_no_token(loop_of):
    long = SamplingParams(20, stop_on_eos=False)
    loop, pipe = loop_of(*((0, Submit(n, [n + 1], long)) for n in range(4)), num_blocks=7)
    assert loop.scheduler.stats.preemptions > 0
    for n in range(4):
        assert [token for token, _ in pipe.tokens(n)] == loop.engine.generate([[n + 1]], long)[0].token_ids
