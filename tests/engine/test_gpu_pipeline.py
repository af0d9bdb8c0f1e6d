"""One step behind on a GPU: hazards 28 to 30 with a device that is late, a host that is late, and both in time."""

import random
import time
from functools import partial

import pytest
import torch

from rosecourse import BEST, EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, lesson, load_model
from tests.support.oracles import prompts_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BEFORE = lesson("066").after
LENGTHS = [3, 17, 16, 15, 40, 1, 33, 64, 5, 31]
LATE = 3_000_000  # cycles of the device, more than a millisecond


@pytest.fixture(scope="module")
def exact():
    return load_model(dtype="float32", device="cuda")


@pytest.fixture(scope="module")
def eos(exact):
    """A token that greedy completions contain at different places."""
    tokens = [result.token_ids for result in make_engine(exact, BEFORE).generate(*requests(exact, False))]
    counts = {token: sum(token in each[:-1] for each in tokens) for each in tokens for token in each}
    return max(counts, key=counts.get)


def make_engine(model, parts, eos=None, **config):
    engine = InferenceEngine(
        model, EngineConfig(**{"block_size": 16, "max_batch_size": 8, "max_seq_len": 128} | config), parts
    )
    engine.eos_token_id = eos
    return engine


def requests(model, stop):
    prompts = prompts_of(LENGTHS, model.shape.vocab_size)
    params = [
        SamplingParams(max_new_tokens=20 + number, temperature=0.8 * (number % 3 == 2), seed=number, stop_on_eos=stop)
        for number in range(len(prompts))
    ]
    return prompts, params


def slow_device(engine):
    launch = engine.pipeline.launch

    def late(*arguments):
        torch.cuda._sleep(LATE)
        launch(*arguments)

    engine.pipeline.launch = late


def slow_host(engine):
    """It sleeps before and after everything that it does for a step, for as long as chance will have it."""
    chance = random.Random(7)
    step, pipeline = engine.decode_step, engine.pipeline

    def slow(real, *arguments):
        time.sleep(chance.choice([0, 0, 2e-3]))
        result = real(*arguments)
        time.sleep(chance.choice([0, 0, 2e-3]))
        return result

    for owner, name in ((step, "place"), (step, "plan"), (step, "runner"), (pipeline.ring, "put"), (pipeline, "land")):
        setattr(owner, name, partial(slow, getattr(owner, name)))


@pytest.mark.parametrize("slow", [[], [slow_device], [slow_host], [slow_device, slow_host]])
@pytest.mark.parametrize("num_blocks", [None, 12])
def test_tokens_are_those_without_the_pipeline(exact, eos, slow, num_blocks):
    """With ends of text, samples, prefix hits, and preemption where the pool is small."""
    prompts, params = requests(exact, stop=True)
    prompts = [*prompts, *prompts[:4]]
    params = [*params, *params[:4]]
    told = []
    for parts in (BEFORE, BEST):
        engine = make_engine(exact, parts, eos, num_blocks=num_blocks)
        if parts is BEST:
            for make in slow:
                make(engine)
        results = engine.generate(prompts, params, n=2)
        told.append([(result.token_ids, result.finish_reason) for result in results])
        assert engine.num_in_flight == 0
        engine.audit([])
    assert told[0] == told[1]
    assert {reason for _, reason in told[0]} == {"stop", "length"}


def test_blocks_come_back_when_the_device_has_done_with_them(exact, eos):
    """Hazard 28: whenever a block is freed, the newest step that had it in its rows is over on the device."""
    engine = make_engine(exact, BEST, eos, prefix_cache=False)
    slow_device(engine)
    launched, freed = [], []
    launch, free = engine.pipeline.launch, engine.kv.free

    def noted(batch):
        launch(batch)
        event = torch.cuda.Event()
        event.record()
        launched.append(({block for table in batch.tables for block in table}, event))

    def watched(table):
        mine = [event for blocks, event in launched if blocks & {*table}]
        freed.append(mine[-1].query())
        free(table)

    engine.pipeline.launch, engine.kv.free = noted, watched
    engine.generate(*requests(exact, stop=True))
    assert len(freed) == len(LENGTHS)
    assert all(freed)


def test_the_host_is_one_step_behind_and_no_more(exact):
    """After each step of the scheduler the newest step is still on its way, and the one before it has been read."""
    engine = make_engine(exact, BEST)
    slow_device(engine)
    scheduler = OnlineScheduler(engine)
    sessions = [engine.new_session(p, SamplingParams(max_new_tokens=30, stop_on_eos=False)) for p in ([1, 2], [3])]
    for session in sessions:
        scheduler.submit(session)
    for _ in range(3):
        scheduler.step()
    for _ in range(10):
        known = [len(session.token_ids) for session in sessions]
        new_tokens = scheduler.step()
        (newest,) = engine.pipeline.in_flight
        assert not newest.pending.copied.query(), "the host has waited for the step that it had launched"
        assert [session for session, _ in new_tokens] == sessions
        assert [len(session.token_ids) for session in sessions] == [number + 1 for number in known]
    for session in sessions:
        scheduler.cancel(session)
    assert engine.num_in_flight == 0


def test_a_steady_step_waits_for_nothing_but_its_tokens(exact):
    """Any other wait for the device raises in here; the event of a slot may be waited for."""
    engine = make_engine(exact, BEST, block_size=64)
    scheduler = OnlineScheduler(engine)
    for prompt in ([1, 2], [3]):
        scheduler.submit(engine.new_session(prompt, SamplingParams(max_new_tokens=30, stop_on_eos=False)))
    for _ in range(4):
        scheduler.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            assert len(scheduler.step()) == 2
    finally:
        torch.cuda.set_sync_debug_mode("default")
    scheduler.run()


def test_a_fork_and_a_cancelled_session_leave_nothing_in_flight(exact):
    told = []
    for parts in (BEFORE, BEST):
        engine = make_engine(exact, parts)
        scheduler = OnlineScheduler(engine)
        prompts, params = requests(exact, stop=False)
        sessions = [engine.new_session(*one) for one in zip(prompts[:6], params[:6], strict=True)]
        for session in sessions:
            scheduler.submit(session)
        for number in range(12):
            scheduler.step()
            while len(sessions[0].completion_ids) < number:
                scheduler.step()
            if number == 5:
                fork = engine.fork(sessions[0])
                assert engine.num_in_flight == 0
                scheduler.submit(fork)
            if number == 8:
                scheduler.cancel(sessions[1])
                assert (sessions[1].table, engine.num_in_flight) == (None, 0)
        scheduler.run()
        assert fork.completion_ids == sessions[0].completion_ids
        told.append([session.completion_ids for session in sessions if session is not sessions[1]])
        engine.audit([])
    assert told[0] == told[1]
