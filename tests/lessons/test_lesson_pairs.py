"""Before and after each lesson: the same tokens, with shared prefixes, forks, mixed lengths, a short pool."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import LESSONS, EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams

BLOCK = 4
STEMS = [[7, 7, 7, 7, 8, 8, 8, 8], [9] * 11, []]  # two blocks, two blocks and a rest, none


@st.composite
def traffic(draw):
    """Prompts (a stem and a tail), when each comes, which sessions are forked when, and how many blocks there are."""
    prompts = draw(
        st.lists(
            st.tuples(st.sampled_from(STEMS), st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 6)),
            min_size=2,
            max_size=5,
        )
    )
    forks = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(0, 99)), max_size=3))
    return [(stem + tail, step) for stem, tail, step in prompts], forks, draw(st.sampled_from([10, 14, 60]))


def play(engine, prompts, forks):
    """The completions of all sessions; the cache is checked after every step."""
    scheduler = OnlineScheduler(engine)
    params = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    sessions = []
    for number in range(400):
        for prompt, step in prompts:
            if step == number:
                sessions.append(engine.new_session(prompt, params))
                scheduler.submit(sessions[-1])
        for step, which, token in forks:
            running = scheduler.running
            if step == number and which < len(running) and not running[which].finished:
                sessions.append(engine.fork(running[which]))
                sessions[-1].token_ids[-1] = token % engine.model.shape.vocab_size  # it goes on with another word
                scheduler.submit(sessions[-1])
        if number > 9 and not scheduler.has_work:
            break
        scheduler.step()
        held = [s.table for s in sessions if s.table is not None]
        engine.kv.audit(held, engine.prefix_cache.entries())
    assert all(session.finished for session in sessions)
    return [session.token_ids for session in sessions]


@given(case=traffic(), min_batch=st.sampled_from([1, 3, 128]))
@settings(max_examples=5, deadline=None)
def test_before_and_after_make_the_same_tokens(case, min_batch, small_model):
    """All rungs meet the same traffic: each is played once, for the lesson that it ends and the one that it begins.

    min_batch: from how many sessions on a kernel appends.
    """
    prompts, forks, num_blocks = case
    config = EngineConfig(
        block_size=BLOCK, max_batch_size=8, num_blocks=num_blocks, max_seq_len=40, triton_kv_append_min_batch=min_batch
    )
    made = {rung.number: play(InferenceEngine(small_model, config, rung.after), prompts, forks) for rung in LESSONS}
    for before, after in pairwise(made):
        assert made[before] == made[after], f"before and after lesson {after}"
