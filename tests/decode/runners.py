"""What the tests of runners share: every kind of runner on a CPU, and traffic that takes buckets up and down."""

import random

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode.runner import EagerRunner
from rosecourse.lab.checking.cpu_runners import CPUGraphRunner, FixedWidthForward, PaddedRunner

PARTS = lesson("066").after
FIXED = PARTS.with_(forward=FixedWidthForward)  # what a graph of a CPU can record
KINDS = {
    "065": lesson("065").after,
    "eager": PARTS.with_(runner=EagerRunner),
    "padded": PARTS.with_(runner=PaddedRunner),
    "graphs": FIXED.with_(runner=CPUGraphRunner),
}
CONFIG = EngineConfig(block_size=4, max_batch_size=11, max_seq_len=24, num_blocks=60, prefix_cache=False)


def engine_of(model, parts, **settings):
    return InferenceEngine(model, EngineConfig(**{**CONFIG.__dict__, **settings}), parts)


def sessions_of(engine, lengths, **params):
    sessions = [
        engine.new_session([7 + n] * length, SamplingParams(max_new_tokens=12, stop_on_eos=False, seed=n, **params))
        for n, length in enumerate(lengths)
    ]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def step(engine, sessions):
    return engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


def random_traffic(engine, seed):
    """Sessions join, leave, fork and change places, so that buckets go up and down; returns all tokens."""
    rng, live, done = random.Random(seed), [], []
    for n in range(24):
        if rng.random() < 0.5 and len(live) < 9:
            params = SamplingParams(
                max_new_tokens=rng.randint(2, 9),
                stop_on_eos=False,
                temperature=0.9 if rng.random() < 0.5 else 0.0,
                top_k=rng.choice([0, 5]),
                top_p=rng.choice([1.0, 0.8]),
                seed=n,
            )
            live.append(engine.new_session([rng.randrange(50) for _ in range(rng.randint(1, 9))], params))
            engine.take_tokens(live[-1:], engine.prefill(live[-1:]))
        if live and rng.random() < 0.2 and len(live) < 11:
            live.append(engine.fork(rng.choice(live)))
        rng.shuffle(live)
        live = [session for session in live if not session.finished]
        if live:
            step(engine, live)
        for session in [session for session in live if session.finished]:
            engine.free(session)
            live.remove(session)
            done.append(session)
        engine.audit(live)
    return [session.completion_ids for session in [*done, *live]]
