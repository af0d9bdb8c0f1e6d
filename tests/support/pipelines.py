"""What the tests of the pipeline share: engines that are one step behind, and runs that are looked at step by step."""

from functools import cache

import pytest

from rosecourse import OnlineScheduler, SamplingParams, lesson
from rosecourse.request.session import samples_of
from tests.support.late_device import assert_nothing_in_flight
from tests.support.machine import AHEAD
from tests.support.oracles import prompts_of
from tests.support.scheduling import check, run
from tests.support.scheduling import make_engine as make_small_engine
from tests.support.tag_model import VOCAB, UnsureModel

BEFORE = lesson("066").after  # the same step, and the host waits for it
one_behind = pytest.mark.parametrize("parts", AHEAD.values(), ids=AHEAD)
LENGTHS = [3, 4, 5, 8, 1, 9, 7, 12]  # of prompts, around the ends of blocks of 4
NEW = [6, 1, 9, 2, 12, 5, 3, 8]  # tokens that they ask for
PROMPTS = prompts_of(LENGTHS, VOCAB)


MODEL = UnsureModel()


def make_engine(parts, model=MODEL, **config):
    return make_small_engine(model, parts, **{"num_blocks": 64} | config)


def asks(new=NEW, stop=False):
    """Every second one samples."""
    return [SamplingParams(most, temperature=n % 2, seed=n, stop_on_eos=stop) for n, most in enumerate(new)]


@cache
def alone(prompt, params):
    """The tokens of a request by itself on the engine of before, and why it ended."""
    (generation,) = make_engine(BEFORE).generate([list(prompt)], params)
    return generation.token_ids, generation.finish_reason


def told_alone(session):
    return alone(tuple(session.prompt_ids), session.params)


class Run:
    """A scheduler, its sessions, and the tokens that its steps have returned of each."""

    def __init__(self, engine, kind=OnlineScheduler, **settings):
        self.engine, self.scheduler = engine, kind(engine, **settings)
        self.sessions, self.got = [], {}

    def submit(self, prompt, params, n=1):
        session = self.engine.new_session(prompt, params)
        self.scheduler.submit(session, samples_of(params, n)[1:])
        self.sessions.append(session)
        return session

    def submit_all(self, prompts=PROMPTS, params=None):
        return [self.submit(*request) for request in zip(prompts, params or asks(), strict=True)]

    def step(self):
        """One step, after which the books are right."""
        for session, token in self.scheduler.step():
            self.got.setdefault(session, []).append(token)
        check(self.scheduler)

    def finish(self):
        """Step to the end; then nothing is in flight, every block is back, and each token was returned once."""
        for session, tokens in run(self.scheduler).items():
            self.got.setdefault(session, []).extend(tokens)
        for session in self.samples:
            assert self.got.get(session, []) == session.completion_ids, "not what the steps returned"
            assert len(session.times.tokens) == len(session.completion_ids)
        assert_empty(self.engine)
        return self

    @property
    def samples(self):
        """The sessions, and those that the scheduler has forked off them."""
        return [sample for session in self.sessions for sample in session.samples]

    def assert_as_alone(self):
        """Every request has got what it gets alone."""
        told = [(session.completion_ids, session.finish_reason) for session in self.samples]
        assert told == [told_alone(session) for session in self.samples]


def assert_empty(engine):
    """All blocks are there, and nothing is in flight."""
    if engine.pipeline.steps_ahead:
        assert_nothing_in_flight(engine)
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
