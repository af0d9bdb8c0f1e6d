"""Misuse is refused by name, before anything has changed: one table of calls, errors and words that must be there.

All is done to one `World`, which has sessions in every state; in the end they get every token as without it.
"""

import threading

import pytest
import torch

from rosecourse import (
    BlockError,
    ConfigError,
    EngineBusy,
    EngineConfig,
    InferenceEngine,
    LogitsError,
    OfflineScheduler,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    SchedulerManager,
)
from rosecourse.kv import blocks as one_table
from tests.support.managers import in_threads
from tests.support.scheduling import make_engine

NEW = 5  # tokens that each session makes
PARAMS = SamplingParams(max_new_tokens=NEW, stop_on_eos=False)
VOCAB = 211


class World:
    """An engine with a session in each state and three schedulers, and another engine with one."""

    def __init__(self, model):
        self.engine, self.other = (make_engine(model, max_batch_size=8, num_blocks=64) for _ in range(2))
        self.stale = self.engine.kv.allocate(40)  # its blocks go to the sessions below
        self.engine.kv.free(self.stale)
        self.new, self.reserved, self.ready, self.a, self.b, self.done, self.gone, self.freed = self.made = [
            self.engine.new_session([10 + n, 3, 5, 7, 11, 13], PARAMS) for n in range(8)
        ]
        self.engine.reserve(self.reserved)
        self.logits = self.engine.prefill([self.ready])
        live = [self.a, self.b, self.done, self.gone, self.freed]
        self.engine.take_tokens(live, self.engine.prefill(live))
        for sessions in (live, live, *[[self.done, self.gone]] * (NEW - 3)):
            self.step(self.engine, sessions)
        self.engine.free(self.gone)
        self.engine.free(self.freed)
        self.scheduler, self.aside, self.ended = (OnlineScheduler(self.engine, max_batch_size=n) for n in (1, 8, 8))
        self.running, self.queued = (self.submitted(self.scheduler, 20 + n) for n in range(2))
        self.scheduler.step()
        self.kept, self.cancelled = self.submitted(self.aside, 40), self.submitted(self.ended, 41)
        self.ended.cancel(self.cancelled)
        self.alien, self.alien_new = (self.other.new_session([30 + n, 3, 5], PARAMS) for n in range(2))
        self.other.take_tokens([self.alien], self.other.prefill([self.alien]))
        self.all = [*self.made, self.running, self.queued, self.kept, self.cancelled]

    def submitted(self, scheduler, token):
        session = self.engine.new_session([token, 3, 5], PARAMS)
        scheduler.submit(session)
        return session

    def step(self, engine, sessions):
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))

    def books(self):
        """All that a call that is refused leaves as it was; raises where an engine's books are wrong."""
        self.engine.audit(self.all)
        self.other.audit([self.alien, self.alien_new])
        sessions = [(s.token_ids, s.table, s.num_cached_tokens, s.finish_reason) for s in [*self.all, self.alien]]
        queues = [list(map(id, queue)) for queue in (self.scheduler.waiting, self.scheduler.running)]
        free = [engine.kv.num_available() for engine in (self.engine, self.other)]
        return repr((sessions, queues, free))

    def finish(self):
        """Run everything to its end and give all blocks back; returns the tokens of each session."""
        self.engine.take_tokens([self.ready], self.logits)
        rest = [self.new, self.reserved, self.freed]
        self.engine.take_tokens(rest, self.engine.prefill(rest))
        self.scheduler.run()
        self.aside.run()
        for engine, sessions in ((self.engine, self.made), (self.other, [self.alien])):
            while live := [session for session in sessions if not session.finished]:
                self.step(engine, live)
            for session in sessions:
                if session.table is not None:
                    engine.free(session)
            engine.audit([])
        assert self.engine.kv.num_available() == self.other.kv.num_available() == 64
        return [session.token_ids for session in [*self.all, self.alien]]


def managed(call):
    """The call, in a thread that is not the stepping one, while a manager has the engine."""

    def misuse(w):
        with SchedulerManager(OnlineScheduler(w.engine)) as w.manager:
            assert len(list(w.manager.submit([9, 8, 7], PARAMS))) == NEW  # it is idle from now on
            call(w)

    return misuse


def inside(call, another=False):
    """The call, in the middle of a step: in the thread that steps, or in another one."""

    def misuse(w):
        errors = []

        def target():
            try:
                call(w)
            except Exception as error:
                errors.append(error)

        def reserve(*arguments, **more):
            in_threads(target) if another else target()
            raise errors[0]  # so that this step changes nothing

        scheduler = OnlineScheduler(w.engine)
        scheduler._reserve = reserve
        session = w.submitted(scheduler, 1)
        try:
            scheduler.step()
        finally:
            scheduler.cancel(session)

    return misuse


def token_of(w, *sessions, like=None):
    w.engine.take_tokens(list(sessions), logits(len(sessions)) if like is None else like)


def logits(rows, value=0.0, vocab=VOCAB):
    return torch.full((rows, vocab), value)


def asks(w, prompt, **params):
    """Ask for tokens in both ways: neither begins."""
    with pytest.raises(RequestError):
        w.engine.stream(prompt, SamplingParams(**params))
    w.engine.new_session(prompt, SamplingParams(**params))


BLOCKS, REQUEST, CONFIG, BUSY = BlockError, RequestError, ConfigError, EngineBusy

# For each call of one session the states, or whose it is, for which it raises BlockError and RequestError.
OF_SESSIONS = {
    "reserve": (lambda w, s: w.engine.reserve(s), "reserved ready a done gone", "queued running alien alien_new"),
    "prefill": (lambda w, s: w.engine.prefill([s]), "ready a done gone cancelled", "queued running alien alien_new"),
    "prefill new and": (lambda w, s: w.engine.prefill([w.new, s]), "new ready a", ""),
    "prefill twice": (lambda w, s: w.engine.prefill([s, s]), "reserved freed", ""),
    "decode": (lambda w, s: w.engine.decode_step_sessions([s]), "", "new ready done gone freed running queued alien"),
    "decode a and": (lambda w, s: w.engine.decode_step_sessions([w.a, s]), "", "new reserved done alien cancelled"),
    "decode twice": (lambda w, s: w.engine.decode_step_sessions([w.b, s, s]), "a b", ""),
    "take_tokens": (token_of, "", "new reserved a done gone freed running alien"),
    "take_tokens ready and": (lambda w, s: token_of(w, w.ready, s), "ready", ""),
    "fork": (lambda w, s: w.engine.fork(s), "", "new reserved done gone freed alien queued cancelled"),
    "free": (lambda w, s: w.engine.free(s), "new gone freed cancelled", "running queued alien"),
    "submit": (lambda w, s: w.scheduler.submit(s), "", "reserved ready done gone running queued alien_new cancelled"),
    "submit elsewhere": (lambda w, s: OfflineScheduler(w.engine).submit(s), "", "reserved running queued alien"),
    "cancel elsewhere": (lambda w, s: w.ended.cancel(s), "", "running queued alien"),
    "audit": (lambda w, s: w.engine.audit([*w.all, s]), "", "alien alien_new"),
}
STRAY = {  # in another thread, while somebody else steps the engine
    "generate": lambda w: w.engine.generate([1, 2], PARAMS),
    "stream": lambda w: w.engine.stream([1, 2], PARAMS),
    "reserve": lambda w: w.engine.reserve(w.new),
    "prefill": lambda w: w.engine.prefill([w.new]),
    "decode": lambda w: w.engine.decode_step_sessions([w.a]),
    "take_tokens": lambda w: token_of(w, w.ready),
    "fork": lambda w: w.engine.fork(w.a),
    "submit": lambda w: w.scheduler.submit(w.new),
    "step": lambda w: w.scheduler.step(),
    "manager": lambda w: SchedulerManager(w.scheduler),
}
SETTINGS = {  # that cannot be
    EngineConfig: {"block_size": (0, 3, 2.0), "max_batch_size": (0, True), "max_seq_len": (1, 97), "num_blocks": (0,)},
    SamplingParams: {
        "max_new_tokens": (0, 1.5),
        "temperature": (-0.1, float("nan"), float("inf"), "hot"),
        "top_k": (-1,),
        "top_p": (0.0, 1.01, float("nan")),
        "seed": (-1,),
    },
}
OTHERS = {  # error, call, words that must be there
    "no model": (CONFIG, lambda w: InferenceEngine("gpt2"), "model is 'gpt2'"),
    # -- lists and logits
    "prefill a session": (CONFIG, lambda w: w.engine.prefill(w.new)),
    "launch a session": (CONFIG, lambda w: w.engine.launch(w.a)),
    "decode before the token is taken": (REQUEST, lambda w: w.engine.decode_step_sessions([w.ready])),
    "decode more than fit": (CONFIG, lambda w: w.engine.decode_step_sessions([w.a] * 9)),
    "one row too many": (CONFIG, lambda w: token_of(w, w.ready, like=logits(2)), "a tensor [2, 211] of torch.float32"),
    "logits of none": (CONFIG, lambda w: token_of(w, w.ready, like=[0.5]), "logits is [0.5]: give the [1, 211]"),
    "logits of another vocabulary": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1, vocab=5))),
    "logits of whole numbers": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1).long())),
    "logits of NaN": (LogitsError, lambda w: token_of(w, w.ready, like=logits(1, torch.nan))),
    "logits of -inf": (LogitsError, lambda w: token_of(w, w.ready, like=logits(1, -torch.inf))),
    "params for another number": (REQUEST, lambda w: w.engine.generate([[1], [2]], [PARAMS])),
    # -- requests that can never be served
    "no prompt": (REQUEST, lambda w: asks(w, []), "the prompt is empty"),
    "no text": (REQUEST, lambda w: asks(w, ""), "the prompt is empty"),
    "too long": (REQUEST, lambda w: asks(w, [1] * 96), "the prompt has 96 tokens", "at most 95"),
    "too many": (REQUEST, lambda w: asks(w, [1] * 90, max_new_tokens=7), "max_new_tokens is 7", "at most 6 fit"),
    "an unknown token": (REQUEST, lambda w: asks(w, [VOCAB]), "token id 211", "vocabulary of 211"),
    "a negative token": (REQUEST, lambda w: asks(w, [-1]), "token id -1"),
    "more than the pool": (
        REQUEST,
        lambda w: make_engine(w.engine.model, num_blocks=3).generate([1] * 5, SamplingParams(9)),
        "need 4 KV blocks, the pool has 3",
    ),
    "fork for too long": (REQUEST, lambda w: w.engine.fork(w.a, SamplingParams(500)), "max_new_tokens is 500"),
    "siblings": (CONFIG, lambda w: w.scheduler.submit(w.new, "two"), "siblings is 'two'"),
    "a sibling": (CONFIG, lambda w: w.scheduler.submit(w.new, [PARAMS, None]), "each of the siblings is None"),
    "a long sibling": (REQUEST, lambda w: w.scheduler.submit(w.new, [SamplingParams(96)]), "max_new_tokens is 96"),
    # -- the cache, schedulers and managers
    "free another cache's table": (BLOCKS, lambda w: w.engine.kv.free(w.alien.table)),
    "free a table of blocks that others have": (BLOCKS, lambda w: w.engine.kv.free(w.stale), "freed twice"),
    "free a copy": (BLOCKS, lambda w: w.engine.kv.free(one_table.BlockTable(w.a.table)), "or a copy"),
    "share another cache's table": (BLOCKS, lambda w: w.engine.kv.share(w.alien.table)),
    "a scheduler for a larger batch": (CONFIG, lambda w: OnlineScheduler(w.engine, max_batch_size=9)),
    "a second manager": (BUSY, managed(lambda w: SchedulerManager(w.manager.scheduler))),
    "a step of a managed scheduler": (BUSY, managed(lambda w: w.manager.scheduler.step())),
    "a cancel of a managed scheduler": (BUSY, managed(lambda w: w.manager.scheduler.cancel(w.new))),
    "a manager made in a step": (BUSY, inside(lambda w: SchedulerManager(w.scheduler))),
    "a manager cancels another engine's": (REQUEST, managed(lambda w: w.manager.cancel(w.alien))),
    "a manager cancels another scheduler's": (REQUEST, managed(lambda w: w.manager.cancel(w.kept))),
    "decode another's in a step": (REQUEST, inside(lambda w: w.engine.decode_step_sessions([w.running]))),
}


def misuses():
    for name, (call, *refused) in OF_SESSIONS.items():
        for error, states in zip((BLOCKS, REQUEST), refused, strict=True):
            for state in states.split():
                yield f"{name} {state}", error, lambda w, call=call, state=state: call(w, getattr(w, state))
    for name, call in STRAY.items():
        yield f"{name} of a managed engine", BUSY, managed(call)
        yield f"{name} during a step", BUSY, inside(call, another=True)
    for kind, settings in SETTINGS.items():
        for name, value in ((name, value) for name, values in settings.items() for value in values):

            def make(w, kind=kind, name=name, value=value):
                InferenceEngine(w.engine.model, kind(**{name: value}))

            yield f"{name} {value!r}", CONFIG, make, f"{name} is {value!r}"
    for bad in (b"hi", [1.5], [["x"]], 5, None, "\ud800"):
        yield f"prompt {bad!r}", REQUEST, lambda w, bad=bad: asks(w, bad), "give a text, or a list of token ids"
    for bad in (0, -1, True, 1.5, "8"):
        case = (
            CONFIG,
            lambda w, bad=bad: SchedulerManager(w.ended, max_waiting=bad),
            f"max_waiting is {bad!r}: give 1 or",
        )
        yield f"max_waiting {bad!r}", *case
    for name, case in OTHERS.items():
        yield name, *case


MISUSES = {name: case for name, *case in misuses()}


@pytest.fixture(scope="module")
def world(small_model):
    """Whatever is done to it, what comes of its sessions is as if nobody had done anything wrong."""
    world = World(small_model)
    yield world
    assert world.finish() == World(small_model).finish()


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_an_error_that_changes_nothing(world, name):
    """Hazard 1, Hazard 9, Hazard 36: the named error on one line; books and sessions are as without it."""
    error, misuse, *words = MISUSES[name]
    before, threads = world.books(), threading.active_count()
    with pytest.raises(error) as caught:
        misuse(world)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 250
    assert not [word for word in words if word not in text]
    assert world.books() == before
    assert threading.active_count() == threads


def test_tokens_added_by_hand_end_at_the_length_of_the_engine(small_model):
    """Hazard 36: such a session never finishes by itself."""
    engine = make_engine(small_model, max_batch_size=2, max_seq_len=24)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=4, stop_on_eos=False))
    engine.prefill([session])
    while session.num_cached_tokens < engine.max_seq_len:
        session.token_ids.append(7)
        engine.decode_step_sessions([session])
    session.token_ids.append(7)
    with pytest.raises(RequestError, match="max_seq_len is 24, make a new one"):
        engine.decode_step_sessions([session])
