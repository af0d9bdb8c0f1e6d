"""What the tests of the pipeline share: engines that are one step behind, and runs that are looked at step by step."""

from functools import cache

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, lesson
from rosecourse.request.session import samples_of
from tests.support.interrupt_story import UnsureModel
from tests.support.late_device import assert_nothing_in_flight
from tests.support.machine import AHEAD
from tests.support.oracles import prompts_of
from tests.support.tag_model import VOCAB

BEFORE = lesson("066").after  # the same step, and the host waits for it
one_behind = pytest.mark.parametrize("parts", AHEAD.values(), ids=AHEAD)
LENGTHS = [3, 4, 5, 8, 1, 9, 7, 12]  # of prompts, around the ends of blocks of 4
NEW = [6, 1, 9, 2, 12, 5, 3, 8]  # tokens that they ask for
PROMPTS = prompts_of(LENGTHS, VOCAB)


class SickModel(UnsureModel):
    """Its logits are NaN after the tokens (token, position) in `sick`, in whichever row they are."""

    def __init__(self):
        super().__init__()
        self.sick = set()

    def hidden(self, token_ids, positions, attend):
        hidden = super().hidden(token_ids, positions, attend)
        for token, position in self.sick:
            hidden[(token_ids == token) & (positions == position)] = -1
        return hidden

    def logits(self, hidden):
        return super().logits(hidden).masked_fill(hidden < 0, torch.nan)


MODEL = UnsureModel()


def make_engine(parts, model=MODEL, **config):
    return InferenceEngine(
        model, EngineConfig(**{"block_size": 4, "max_batch_size": 4, "num_blocks": 64} | config), parts
    )


def asks(new=NEW, stop=False):
    """Every second one samples."""
    return [
        SamplingParams(max_new_tokens=most, temperature=number % 2, seed=number, stop_on_eos=stop)
        for number, most in enumerate(new)
    ]


@cache
def alone(prompt, params):
    """The tokens of a request by itself on the engine of before, and why it ended."""
    (generation,) = make_engine(BEFORE).generate([list(prompt)], params)
    return generation.token_ids, generation.finish_reason


def told_alone(session):
    return alone(tuple(session.prompt_ids), session.params)


class Run:
    """A scheduler, its sessions, and the tokens that its steps have returned of each.

    kept: sessions with tokens that a call which raised has kept for itself.
    """

    def __init__(self, engine, kind=OnlineScheduler, **settings):
        self.engine, self.scheduler = engine, kind(engine, **settings)
        self.sessions, self.known, self.got, self.kept = [], {}, {}, set()

    def submit(self, prompt, params, n=1):
        return self.add(self.engine.new_session(prompt, params), n)

    def add(self, session, n=1):
        """Submit a session: a new one, or a fork."""
        self.scheduler.submit(session, samples_of(session.params, n)[1:])
        self.sessions.append(session)
        self.known[session] = len(session.token_ids)
        return session

    def submit_all(self, prompts=PROMPTS, params=None):
        return [self.submit(*request) for request in zip(prompts, params or asks(), strict=True)]

    def step(self):
        """One step, after which the books are right."""
        for session, token in self.scheduler.step():
            self.got.setdefault(session, []).append(token)
        self.check()

    def check(self):
        self.scheduler.audit()
        live = [*self.scheduler.waiting, *self.scheduler.running]
        assert len(set(live)) == len(live)
        assert not any(session.finished for session in live)

    def finish(self, most=400):
        """Step to the end; then nothing is in flight, every block is back, and each token was returned once."""
        for _ in range(most):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "it never comes to an end"
        for session in {*self.samples} - self.kept:
            made = session.token_ids[self.known.get(session, len(session.prompt_ids)) :]
            assert self.got.get(session, []) == made, "not what the steps returned"
            assert len(session.times.tokens) == len(made)
        assert_empty(self.engine)
        return self

    @property
    def samples(self):
        """The sessions, and those that the scheduler has forked off them."""
        return [sample for session in self.sessions for sample in session.samples]

    def told(self):
        return [(session.completion_ids, session.finish_reason) for session in self.samples]


def assert_empty(engine):
    """All blocks are there, and nothing is in flight."""
    if engine.pipeline.steps_ahead:
        assert_nothing_in_flight(engine)
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
