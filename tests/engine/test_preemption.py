"""Too few blocks: what a scheduler gives up it computes again, and nothing is lost or doubled."""

import json
import re

import pytest

from rosecourse import LESSONS, OnlineScheduler, RequestError, SamplingParams, SchedulerManager
from tests.support.commands import benchmark_scheduler, benchmark_streaming
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import BLOCK, ROOMY, make_engine, run, submit


@pytest.mark.parametrize(("new", "prefix_cache"), [(2, False), (4, True), (13, False)])
@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_the_default_pool_has_room_for_a_whole_batch(small_model, rung, new, prefix_cache):
    """Of whatever lengths, to the longest: nobody waits for a block and nobody is preempted."""
    engine = make_engine(small_model, rung.after, max_seq_len=16, max_batch_size=6, prefix_cache=prefix_cache)
    scheduler = OnlineScheduler(engine)
    longest = 16 - new
    lengths = [longest, 1, longest, min(BLOCK, longest), longest, min(BLOCK + 1, longest)]
    submit(scheduler, lengths, new=new)
    assert [len(scheduler.step()) for _ in range(new)] == [6] * new
    assert not scheduler.has_work
    assert scheduler.stats.preemptions == 0


def test_no_block_is_kept_free_for_a_session_in_its_last_one(small_model):
    """K and V of its last token are never needed: 13 tokens and 4 more fill four blocks to the last slot."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=8, prefix_cache=False))
    submit(scheduler, [13, 13], new=4)
    assert [len(scheduler.step()) for _ in range(4)] == [2] * 4


def test_a_block_is_kept_free_for_a_session_whose_last_token_but_one_needs_it(small_model):
    """16 tokens fill four blocks, and K and V of the first new one need a fifth: the other session waits."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=8, prefix_cache=False))
    scheduler.submit(scheduler.engine.new_session([1] * 16, SamplingParams(max_new_tokens=2, stop_on_eos=False)))
    submit(scheduler, [13], new=4)
    run(scheduler)
    assert scheduler.stats.preemptions == 0


def test_admission_leaves_a_block_for_the_copy_that_a_fork_needs(small_model):
    """Parent and fork will not outgrow their one block, but they share it, and one of them has to leave."""
    engine = make_engine(small_model, num_blocks=2, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    (parent,) = submit(scheduler, [2], new=3)
    scheduler.step()
    scheduler.submit(engine.fork(parent))
    submit(scheduler, [2], new=3)
    run(scheduler)
    assert scheduler.stats.preemptions == 0


@pytest.mark.parametrize("free", [0, 1, 2])
def test_every_session_needs_a_block_in_one_step(small_pair, free):
    """Hazard 10: four sessions with full blocks, and fewer blocks than they need: in each step somebody goes on."""
    hf, model = small_pair
    scheduler = OnlineScheduler(make_engine(model, num_blocks=16, prefix_cache=False))
    sessions = submit(scheduler, [BLOCK + 1] * 4, new=12)
    scheduler.step()
    taken = scheduler.engine.kv.allocate((8 - free) * BLOCK)  # else admission leaves a block for each
    while any(s.num_cached_tokens < 2 * BLOCK for s in sessions):
        scheduler.step()
    assert scheduler.stats.preemptions == 0
    assert scheduler.engine.kv.num_available() == free
    assert not scheduler.engine.can_append(sessions)
    while scheduler.has_work:
        assert len(scheduler.step()) >= 1
        scheduler.engine.kv.audit([taken, *(s.block_ids_per_layer for s in scheduler.running)])
    assert scheduler.stats.preemptions > 0
    assert [s.completion_ids for s in sessions] == hf_greedy(hf, [s.prompt_ids for s in sessions], 12)


def test_all_that_run_get_their_token_when_it_is_a_waiting_fork_that_goes(small_model):
    """The fork waits for a place with a block of its own, which its parent left to it: that block is enough."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=4, prefix_cache=False), max_batch_size=2)
    sessions = submit(scheduler, [BLOCK - 1, BLOCK - 1], new=6)
    scheduler.step()
    fork = scheduler.engine.fork(sessions[0])
    scheduler.submit(fork)
    scheduler.step()
    assert not scheduler.engine.can_append(sessions)
    assert [session for session, _ in scheduler.step()] == sessions
    assert fork.block_ids_per_layer is None
    assert scheduler.stats.preemptions == 1
    run(scheduler)


def test_what_can_never_fit_is_refused_and_those_behind_it_run(small_pair):
    """Hazard 9, with a scheduler and with a manager: the limit itself fits, one token more does not."""
    hf, model = small_pair
    engine = make_engine(model, num_blocks=3, prefix_cache=False)
    params = SamplingParams(max_new_tokens=5, stop_on_eos=False)
    prompts = prompts_of([8, 9, 8], 211)
    refused = r"9 tokens and 5 new ones need 4 KV blocks, the pool has 3: give the engine more blocks"
    scheduler = OnlineScheduler(engine)
    sessions = []
    for prompt in prompts:
        if len(prompt) == 9:
            with pytest.raises(RequestError, match=refused):
                engine.new_session(prompt, params)
        else:
            sessions.append(engine.new_session(prompt, params))
            scheduler.submit(sessions[-1])
    run(scheduler)
    expected = hf_greedy(hf, prompts[::2], 5)
    assert [s.completion_ids for s in sessions] == expected
    with SchedulerManager(scheduler) as manager:
        first = manager.submit(prompts[0], params)
        with pytest.raises(RequestError, match=refused):
            manager.submit(prompts[1], params)
        last = manager.submit(prompts[2], params)
        assert [[token.token_id for token in stream] for stream in (first, last)] == expected


def test_a_preempted_session_may_be_cancelled_or_finish(small_model):
    """Hazard 2, the state that only a small pool knows: waiting for the second time."""
    engine = make_engine(small_model, num_blocks=5, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    old, new = submit(scheduler, [7, 7], new=12)
    while not scheduler.stats.preemptions:
        scheduler.step()
    assert new.completion_ids
    assert new in scheduler.waiting
    for _ in range(2):
        scheduler.cancel(new)
        scheduler.audit()
    run(scheduler)
    assert (old.finish_reason, new.finish_reason) == ("length", "cancelled")
    assert engine.kv.num_available() == 5


@pytest.mark.parametrize("started", [False, True])
def test_a_fork_is_cancelled_waiting_or_running(small_model, started):
    engine = make_engine(small_model, prefix_cache=False)
    scheduler = OnlineScheduler(engine, max_batch_size=2 if started else 1)
    (parent,) = submit(scheduler, [6], new=8)
    scheduler.step()
    fork = engine.fork(parent)
    scheduler.submit(fork)
    scheduler.step()
    assert (fork in scheduler.running) == started
    for _ in range(2):
        scheduler.cancel(fork)
        scheduler.audit()
    run(scheduler)
    assert (parent.finish_reason, fork.finish_reason) == ("length", "cancelled")
    assert engine.kv.num_available() == engine.kv.num_blocks


@pytest.mark.parametrize("command", [benchmark_scheduler, benchmark_streaming])
def test_the_benchmarks_report_preemptions(command, tmp_path, capsys):
    """One run with a pool that four requests of 3 blocks outgrow, one with a pool for all."""

    def preemptions(num_blocks):
        file = tmp_path / f"{num_blocks}.json"
        flags = "--num-requests 4 --max-new-tokens 24 --no-stop-on-eos --block-size 8 --warmup-runs 0 --repeat-runs 2"
        flags += f" --no-prefix-cache --device cpu --num-blocks {num_blocks} --json {file}"
        assert command.main(flags.split()) == 0
        printed = int(re.search(r"(\d+) preemptions", capsys.readouterr().out)[1])
        written = [run["preemptions"] for run in json.loads(file.read_text())["runs"]]
        assert len(written) == 2
        assert printed == sum(written)
        return printed

    assert preemptions(5) > 0
    assert preemptions(ROOMY) == 0
