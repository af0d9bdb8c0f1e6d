"""Misuse is refused by name, before anything has changed: a table of calls, and what no call of it may touch.

`MISUSES` says what is done to a fresh `World`, which has sessions in every state, and which error is to come.
"""

import threading
from contextlib import suppress

import pytest
import torch

from rosecourse import (
    BlockError,
    ConfigError,
    EngineBusy,
    LogitsError,
    OfflineScheduler,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    SchedulerClosed,
    SchedulerManager,
)
from rosecourse.kv import blocks as one_table
from tests.engine.states import NEW, PARAMS, VOCAB, World
from tests.support.managers import LIMIT
from tests.support.scheduling import make_engine


def managed(call):
    """The call, in a thread that is not the stepping one, while a manager has the engine."""

    def misuse(w):
        manager = SchedulerManager(OnlineScheduler(w.engine))
        try:
            stream = manager.submit([9, 8, 7], PARAMS)
            assert len(list(stream)) == NEW  # it is idle from now on
            call(w, manager)
        finally:
            manager.close(drain=True)

    return misuse


def elsewhere(call):
    """The call, in another thread while this one is in the middle of a step."""

    def misuse(w):
        errors = []

        def target():
            try:
                call(w)
            except Exception as error:
                errors.append(error)

        def admission(waiting):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            thread.join(LIMIT)
            raise ZeroDivisionError  # so that this step changes nothing

        scheduler = OnlineScheduler(w.engine, admission=admission)
        session = w.engine.new_session([1], PARAMS)
        scheduler.submit(session)
        with suppress(ZeroDivisionError):
            scheduler.step()
        scheduler.cancel(session)
        if errors:
            raise errors[0]

    return misuse


def inside(call):
    """The call, in the thread that steps, in the middle of its step."""

    def misuse(w):
        scheduler = OnlineScheduler(w.engine, admission=lambda waiting: call(w) or 0)
        session = w.engine.new_session([1], PARAMS)
        scheduler.submit(session)
        try:
            scheduler.step()
        finally:
            scheduler.cancel(session)

    return misuse


def submit_to_another(w):
    OnlineScheduler(w.engine).submit(w.queued)


def second_manager(w, manager):
    SchedulerManager(manager.scheduler)


def closed_manager(w):
    manager = SchedulerManager(OnlineScheduler(w.other))
    manager.close()
    manager.submit([1], PARAMS)


def logits(rows, value=0.0, vocab=VOCAB):
    return torch.full((rows, vocab), value)


def token_of(w, *sessions, like=None):
    w.engine.take_tokens(list(sessions), logits(len(sessions)) if like is None else like)


def freed_table(w):
    table = w.engine.kv.allocate(4)
    w.engine.kv.free(table)
    return table


def kv_rows(w, *shape):
    kv = w.engine.kv
    blocks = torch.zeros(2, dtype=torch.int64)
    rows = torch.zeros(shape)
    kv.write_tokens(0, blocks, blocks, rows, rows)


STATES = ("new", "reserved", "ready", "a", "done", "gone", "freed", "running", "queued", "alien", "cancelled")


def each(error, call, *states):
    """One case for each of these sessions."""
    return {name: (error, lambda w, name=name: call(w, getattr(w, name))) for name in states}


def of(prefix, cases):
    return {f"{prefix} {name}": case for name, case in cases.items()}


BLOCKS, REQUEST, CONFIG, BUSY = BlockError, RequestError, ConfigError, EngineBusy

MISUSES = {
    # -- sessions that a call is not for
    **of("reserve", each(BLOCKS, lambda w, s: w.engine.reserve(s), "reserved", "ready", "a", "done", "gone")),
    **of("reserve", each(REQUEST, lambda w, s: w.engine.reserve(s), "queued", "running", "alien", "alien_new")),
    **of("prefill", each(BLOCKS, lambda w, s: w.engine.prefill([s]), "ready", "a", "done", "gone", "cancelled")),
    **of("prefill", each(REQUEST, lambda w, s: w.engine.prefill([s]), "queued", "running", "alien", "alien_new")),
    **of("prefill new and", each(BLOCKS, lambda w, s: w.engine.prefill([w.new, s]), "new", "ready", "a")),
    **of("prefill itself twice", each(BLOCKS, lambda w, s: w.engine.prefill([s, s]), "reserved", "freed")),
    **of("decode", each(REQUEST, lambda w, s: w.engine.decode_step_sessions([s]), *STATES[:2], *STATES[4:])),
    **of("decode a and", each(REQUEST, lambda w, s: w.engine.decode_step_sessions([w.a, s]), "new", "done", "alien")),
    **of("decode twice", each(BLOCKS, lambda w, s: w.engine.decode_step_sessions([w.b, s, s]), "a", "b")),
    **of("take_tokens", each(REQUEST, token_of, "new", "reserved", "a", "done", "gone", "freed", "running", "alien")),
    **of("take_tokens ready and", each(BLOCKS, lambda w, s: token_of(w, w.ready, s), "ready")),
    **of("fork", each(REQUEST, lambda w, s: w.engine.fork(s), "new", "reserved", "done", "gone", "freed", "alien")),
    **of("fork", each(REQUEST, lambda w, s: w.engine.fork(s), "queued", "cancelled")),
    **of("free", each(BLOCKS, lambda w, s: w.engine.free(s), "new", "gone", "freed", "cancelled")),
    **of("free", each(REQUEST, lambda w, s: w.engine.free(s), "running", "queued", "alien")),
    **of("submit", each(REQUEST, lambda w, s: w.scheduler.submit(s), "reserved", "ready", "done", "gone", "running")),
    **of("submit", each(REQUEST, lambda w, s: w.scheduler.submit(s), "queued", "alien", "alien_new", "cancelled")),
    **of("submit offline", each(REQUEST, lambda w, s: OfflineScheduler(w.engine).submit(s), "reserved", "running")),
    **of("cancel elsewhere", each(REQUEST, lambda w, s: w.ended.cancel(s), "running", "queued", "alien")),
    **of("can_append", each(BLOCKS, lambda w, s: w.engine.can_append([w.a, s]), "new", "gone", "queued")),
    **of("can_append", each(REQUEST, lambda w, s: w.engine.can_append([w.a, s]), "alien")),
    **of("may_need_block", each(BLOCKS, lambda w, s: w.engine.may_need_block(s), "new", "freed")),
    **of("may_need_block", each(REQUEST, lambda w, s: w.engine.may_need_block(s), "alien")),
    **of("audit", each(REQUEST, lambda w, s: w.engine.audit([*w.all, s]), "alien", "alien_new")),
    "submit to a second scheduler": (REQUEST, submit_to_another),
    # -- no sessions at all (whatever it is: test_bad_input_library.py)
    "prefill a session": (CONFIG, lambda w: w.engine.prefill(w.new)),
    "prefill nothing": (CONFIG, lambda w: w.engine.prefill([])),
    "prefill None": (CONFIG, lambda w: w.engine.prefill(None)),
    "decode a session": (CONFIG, lambda w: w.engine.decode_step_sessions(w.a)),
    "decode before the token is taken": (REQUEST, lambda w: w.engine.decode_step_sessions([w.ready])),
    "decode nothing": (CONFIG, lambda w: w.engine.decode_step_sessions([])),
    "decode None": (CONFIG, lambda w: w.engine.decode_step_sessions(None)),
    "decode a set": (CONFIG, lambda w: w.engine.decode_step_sessions({w.a, w.b})),
    "decode a generator": (CONFIG, lambda w: w.engine.decode_step_sessions(s for s in [w.a])),
    "decode more than fit": (CONFIG, lambda w: w.engine.decode_step_sessions([w.a] * 9)),
    "audit None": (CONFIG, lambda w: w.engine.audit(None)),
    # -- logits and params
    "one row too few": (CONFIG, lambda w: token_of(w, w.ready, like=logits(0))),
    "one row too many": (CONFIG, lambda w: token_of(w, w.ready, like=logits(2))),
    "logits of another vocabulary": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1, vocab=5))),
    "logits without a batch": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1)[0])),
    "logits of whole numbers": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1).long())),
    "logits in a list": (CONFIG, lambda w: token_of(w, w.ready, like=logits(1).tolist())),
    "no logits": (CONFIG, lambda w: w.engine.take_tokens([w.ready], None)),
    "logits of NaN": (LogitsError, lambda w: token_of(w, w.ready, like=logits(1, torch.nan))),
    "logits of +inf": (LogitsError, lambda w: token_of(w, w.ready, like=logits(1, torch.inf))),
    "logits of -inf": (LogitsError, lambda w: token_of(w, w.ready, like=logits(1, -torch.inf))),
    "fork with a dict for params": (CONFIG, lambda w: w.engine.fork(w.a, {"max_new_tokens": 3})),
    "fork with too many tokens": (REQUEST, lambda w: w.engine.fork(w.a, SamplingParams(max_new_tokens=500))),
    "new session with a dict for params": (CONFIG, lambda w: w.engine.new_session([1], {"seed": 3})),
    "new session with an unknown token": (REQUEST, lambda w: w.engine.new_session([VOCAB])),
    "new session with the empty prompt": (REQUEST, lambda w: w.engine.new_session([])),
    "generate with params for another number": (REQUEST, lambda w: w.engine.generate([[1], [2]], [PARAMS])),
    "generate with a number for params": (CONFIG, lambda w: w.engine.generate([[1], [2]], [PARAMS, 3])),
    # -- the cache
    **{
        f"kv.{name} {value!r}": (BLOCKS, lambda w, name=name, value=value: getattr(w.engine.kv, name)(value))
        for name, values in {
            "allocate": (3.5, -1, True, None, "4"),
            "info": ("x", None, -1, 10**9, [1]),
            "free": ([0], None, 3),
            "share": (None, 3, [0], [0, 0]),
        }.items()
        for value in values
    },
    "kv.free of another cache's table": (BLOCKS, lambda w: w.engine.kv.free(w.alien.table)),
    "kv.free of a freed table": (BLOCKS, lambda w: w.engine.kv.free(freed_table(w))),
    "kv.free of a copy": (BLOCKS, lambda w: w.engine.kv.free(one_table.BlockTable(w.a.table))),
    "kv.free of a table as a list": (BLOCKS, lambda w: w.engine.kv.free(list(w.a.table))),
    "kv.share of another cache's table": (BLOCKS, lambda w: w.engine.kv.share(w.alien.table)),
    "kv.share of a freed table": (BLOCKS, lambda w: w.engine.kv.share(freed_table(w))),
    "kv.allocate after a block twice": (BLOCKS, lambda w: w.engine.kv.allocate(9, [w.a.table[0]] * 2)),
    "kv.allocate after a free block": (BLOCKS, lambda w: w.engine.kv.allocate(9, [63])),
    "kv.write_tokens of one head": (BLOCKS, lambda w: kv_rows(w, 2, 1, 8)),
    "kv.write_tokens of one token for two": (BLOCKS, lambda w: kv_rows(w, 1, 2, 8)),
    # -- schedulers and managers
    "a scheduler of no engine": (CONFIG, lambda w: OnlineScheduler(w.scheduler)),
    "a scheduler for a larger batch": (CONFIG, lambda w: OnlineScheduler(w.engine, max_batch_size=9)),
    "a manager of an engine": (CONFIG, lambda w: SchedulerManager(w.engine)),
    "a manager of None": (CONFIG, lambda w: SchedulerManager(None)),
    "a manager of a manager": (CONFIG, managed(lambda w, manager: SchedulerManager(manager))),
    "two managers of a scheduler": (BUSY, managed(second_manager)),
    "two managers of an engine": (BUSY, managed(lambda w, manager: SchedulerManager(OnlineScheduler(w.engine)))),
    "a manager of an engine in use": (BUSY, elsewhere(lambda w: SchedulerManager(OnlineScheduler(w.engine)))),
    "a manager made in a step": (BUSY, inside(lambda w: SchedulerManager(w.scheduler))),
    "a closed manager": (SchedulerClosed, closed_manager),
    "a manager cancels another engine's": (REQUEST, managed(lambda w, manager: manager.cancel(w.alien))),
    "a manager cancels another scheduler's": (REQUEST, managed(lambda w, manager: manager.cancel(w.kept))),
    "a manager cancels a number": (CONFIG, managed(lambda w, manager: manager.cancel(3))),
    "a step inside a step decodes another's": (REQUEST, inside(lambda w: w.engine.decode_step_sessions([w.running]))),
    # -- another thread
    "stray generate": (BUSY, managed(lambda w, manager: w.engine.generate([1, 2], PARAMS))),
    "stray stream": (BUSY, managed(lambda w, manager: w.engine.stream([1, 2], PARAMS))),
    "stray reserve": (BUSY, managed(lambda w, manager: w.engine.reserve(w.new))),
    "stray prefill": (BUSY, managed(lambda w, manager: w.engine.prefill([w.new]))),
    "stray decode": (BUSY, managed(lambda w, manager: w.engine.decode_step_sessions([w.a]))),
    "stray take_tokens": (BUSY, managed(lambda w, manager: token_of(w, w.ready))),
    "stray fork": (BUSY, managed(lambda w, manager: w.engine.fork(w.a))),
    "stray can_append": (BUSY, managed(lambda w, manager: w.engine.can_append([w.a]))),
    "stray submit": (BUSY, managed(lambda w, manager: manager.scheduler.submit(w.new))),
    "stray cancel": (BUSY, managed(lambda w, manager: manager.scheduler.cancel(w.new))),
    "stray step": (BUSY, managed(lambda w, manager: manager.scheduler.step())),
    "stray step of another scheduler": (BUSY, managed(lambda w, manager: OnlineScheduler(w.engine).step())),
    "generate during a step": (BUSY, elsewhere(lambda w: w.engine.generate([1, 2], PARAMS))),
    "decode during a step": (BUSY, elsewhere(lambda w: w.engine.decode_step_sessions([w.a]))),
    "submit during a step": (BUSY, elsewhere(lambda w: w.scheduler.submit(w.new))),
    "step during a step": (BUSY, elsewhere(lambda w: w.scheduler.step())),
}


@pytest.fixture(scope="module")
def undisturbed(small_model):
    """What comes of the sessions if nobody does anything wrong."""
    return World(small_model).finish()


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_an_error_that_changes_nothing(small_model, undisturbed, name):
    """Hazard 36: the named error on one line; books, sessions and every later token are as without it."""
    error, misuse = MISUSES[name]
    world = World(small_model)
    before = world.books()
    with pytest.raises(error) as caught:
        misuse(world)
    text = str(caught.value)
    assert "\n" not in text
    assert 20 < len(text) < 250
    assert world.books() == before
    assert world.finish() == undisturbed


def test_tokens_that_somebody_adds_by_hand_end_at_the_length_of_the_engine(small_model):
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
