"""Calls that are interrupted beside those of the random machine: of an engine, a manager and its streams.

After each everything runs on: all tokens must be those of a run without an interrupt, returned once, and no block may
be missing.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import islice

from rosecourse import EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, SchedulerManager, TokenReader
from tests.support.interrupts import Scene
from tests.support.machine import PARTS
from tests.support.tag_model import UnsureModel

PROMPTS = [[1, 2, 3, 4, 5, 6, 1], [9, 8, 7, 1], [11, 12, 13, 14, 15, 1]]
WANTED = [SamplingParams(4, stop_on_eos=False, temperature=number % 2, seed=number) for number in range(3)]


def make_engine(parts: str) -> InferenceEngine:
    return InferenceEngine(UnsureModel(), EngineConfig(block_size=2, max_batch_size=4, num_blocks=9), PARTS[parts])


@cache
def generated() -> list:
    """What `generate` gives where nothing interrupts it."""
    return [g.token_ids for g in make_engine("061").generate(PROMPTS, WANTED)]


def check_empty(engine: InferenceEngine) -> None:
    """All blocks are there, and what the prefix cache knows is right."""
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
    assert [g.token_ids for g in engine.generate(PROMPTS, WANTED)] == generated()
    engine.audit([])


def generate_scene(parts: str) -> Scene:
    engine = make_engine(parts)

    def check(interrupted, result):
        assert interrupted or [g.token_ids for g in result] == generated()
        check_empty(engine)  # the same call again

    return Scene(lambda: engine.generate(PROMPTS, WANTED), check)


def stream_scene(parts: str, taken: int) -> Scene:
    """A reader that takes so many tokens and goes away."""
    engine = make_engine(parts)

    def read():
        stream = engine.stream(PROMPTS[0], WANTED[0])
        try:
            return [token.token_id for token in islice(stream, taken)]
        finally:
            stream.close()

    def check(interrupted, result):
        assert interrupted or result == generated()[0][:taken]
        check_empty(engine)

    return Scene(read, check)


def free_scene(parts: str) -> Scene:
    """A session that somebody decodes by hand; after it the blocks are held by it, or free."""
    engine = make_engine(parts)
    sessions = [engine.new_session(prompt, wanted) for prompt, wanted in zip(PROMPTS[:2], WANTED, strict=False)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))

    def check(interrupted, _):
        engine.audit(sessions)
        assert interrupted or sessions[0].table is None
        for session in sessions:
            if session.table is not None:
                engine.free(session)
        check_empty(engine)

    return Scene(lambda: engine.free(sessions[0]), check)


def manager_scene(parts: str, call: str) -> Scene:
    """Submit to a manager, cancel, read, or close it; whatever comes, others can use it on, and it can be closed."""
    engine = make_engine(parts)
    manager = SchedulerManager(OnlineScheduler(engine))
    streams = [manager.submit(prompt, wanted) for prompt, wanted in zip(PROMPTS[:2], WANTED, strict=False)]
    reader = TokenReader(manager)
    listed = reader.submit(PROMPTS[2], WANTED[2])
    calls = {
        "submit": lambda: streams.append(manager.submit(PROMPTS[2], WANTED[2])),
        "cancel": streams[1].cancel,
        "close": manager.close,
        "drain": lambda: manager.close(drain=True),
        "next(stream)": lambda: next(streams[0]),
        "next(reader)": lambda: next(reader),
    }

    def check(interrupted, result):
        for stream, expected in zip(streams, generated(), strict=False):
            tokens = [token.token_id for token in stream]
            if call == "next(stream)" and result and stream is streams[0]:  # else it is the next one
                tokens.insert(0, result.token_id)
            assert tokens == expected[: len(tokens)]
            assert len(tokens) == len(expected) or call in ("cancel", "close")
        lists = [*([result] if call == "next(reader)" and result else []), *reader]
        read = [token.token_id for each in lists for _, token in each]
        assert read == listed.completion_ids == generated()[2][: len(read)]
        manager.close(drain=True)
        assert not manager.scheduler.has_work
        check_empty(engine)

    return Scene(calls[call], check)


SCENES: dict[str, Callable[[str], Scene]] = {
    "generate": generate_scene,
    "stream to the end": lambda parts: stream_scene(parts, 9),
    "stream left early": lambda parts: stream_scene(parts, 2),
    "free": free_scene,
}
for name in ("submit", "cancel", "close", "drain", "next(stream)", "next(reader)"):
    SCENES[name] = partial(manager_scene, call=name)
