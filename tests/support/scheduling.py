"""What the tests of schedulers share: small engines, requests, and a run whose invariants are checked step by step."""

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams
from tests.support.oracles import prompts_of

BLOCK = 4


def make_engine(model, parts=BEST, **config):
    return InferenceEngine(model, EngineConfig(**{"block_size": BLOCK, "max_batch_size": 4} | config), parts)


def submit(scheduler, lengths, new=10, temperature=0.0):
    """Sessions of prompts of these lengths; `new` tokens for all, or for each."""
    news = new if isinstance(new, list) else [new] * len(lengths)
    sessions = [
        scheduler.engine.new_session(
            prompt, SamplingParams(max_new_tokens=most, stop_on_eos=False, temperature=temperature, seed=number)
        )
        for number, (prompt, most) in enumerate(zip(prompts_of(lengths, 211), news, strict=True))
    ]
    for session in sessions:
        scheduler.submit(session)
    return sessions


def check(scheduler):
    """The invariants of the cache, and that a session either waits or runs."""
    live = [*scheduler.waiting, *scheduler.running]
    assert len(set(map(id, live))) == len(live)
    assert not any(session.finished for session in live)
    scheduler.audit()


def run(scheduler):
    """Step to the end; the tokens that came out of each step, by session."""
    got = {}
    for _ in range(500):
        if not scheduler.has_work:
            break
        for session, token_id in scheduler.step():
            got.setdefault(session, []).append(token_id)
        check(scheduler)
    assert not scheduler.has_work
    return got
