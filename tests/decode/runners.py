"""What the tests of runners share: every kind of runner on a CPU, and traffic that takes buckets up and down."""

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode.runner import EagerRunner
from rosecourse.lab.checking.cpu_runners import FixedWidthForward
from tests.support.graph_runners import CPUGraphRunner, CPUGraphRunnerOf066, PaddedRunner

PARTS = lesson("066").after
FIXED = PARTS.with_(forward=FixedWidthForward)  # what a graph of a CPU can record
KINDS = {
    "065": lesson("065").after,
    "eager": PARTS.with_(runner=EagerRunner),
    "padded": PARTS.with_(runner=PaddedRunner),
    "graphs": FIXED.with_(runner=CPUGraphRunner),
    "graphs of 066": FIXED.with_(runner=CPUGraphRunnerOf066),
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


def traffic(engine):
    """Sessions join, fork, change places and leave, so that buckets go up and down; returns all tokens."""
    live, told = [], []
    for number, joining in enumerate((3, 5, 1, 1, 1, 2)):
        live += sessions_of(engine, range(1 + number, 1 + number + joining), temperature=0.9 * (number % 2), top_k=5)
        if number == 2:
            live.append(engine.fork(live[0]))
        for _ in range(2):
            step(engine, live)
            live.reverse()
        for session in live[::2]:
            engine.free(session)
        told += live[::2]
        live = live[1::2]
        engine.audit(live)
    return [session.completion_ids for session in [*told, *live]]
