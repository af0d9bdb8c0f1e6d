"""What is interrupted: a step of the story, and every other call of an engine, a scheduler and a manager.

After each everything runs on: all tokens must be those of a run without an interrupt, returned once, and no block may
be missing.
"""

from collections.abc import Callable
from functools import cache
from itertools import islice

from rosecourse import InferenceEngine, OnlineScheduler, SchedulerManager
from tests.support.failing import heal
from tests.support.interrupt_story import REQUESTS, STEM, Story, make_engine, params, told_alone
from tests.support.interrupts import Scene

PROMPTS = [[*STEM, 5, 6, 1], [9, 8, 7, 1], [11, 12, 13, 14, 15, 1]]
WANTED = [params(number, 4) for number in range(3)]


@cache
def generated() -> list:
    """What `generate` gives where nothing interrupts it."""
    return [g.token_ids for g in make_engine("061", 64).generate(PROMPTS, WANTED)]


def check_empty(engine: InferenceEngine) -> None:
    """All blocks are there, and what the prefix cache knows is right."""
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
    assert [g.token_ids for g in engine.generate(PROMPTS, WANTED)] == generated()
    engine.audit([])


def step_scene(parts: str, step: int, expected: list) -> Scene:
    story = Story(parts)
    story.go_to(step)

    def check(interrupted, result):
        story.scheduler.audit()
        live = [*story.scheduler.waiting, *story.scheduler.running]
        assert sorted(map(id, live)) == sorted(id(s) for s in story.sessions if not s.finished)
        story.take(result or [])
        story.finish()
        assert story.told() == expected[: len(story.sessions)]
        heal(story.engine)
        check_empty(story.engine)

    return Scene(story.scheduler.step, check)


# -- other calls ------------------------------------------------------------------------------------------------------


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


def fork_scene(parts: str) -> Scene:
    """A fork of a session with a block that is not full; it must be in the caller's hands, or free."""
    story = Story(parts)
    story.go_to(2)
    parent = story.sessions[0]

    def check(interrupted, fork):
        live = [*story.scheduler.waiting, *story.scheduler.running]
        story.engine.audit(live if interrupted else [*live, fork])
        if fork is not None:
            story.add(fork)
        story.finish()
        assert fork is None or fork.token_ids == parent.token_ids
        check_end(story)

    return Scene(lambda: story.engine.fork(parent), check)


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


def check_end(story: Story) -> None:
    """Whoever is done has all its own tokens; nobody else is there."""
    alone = dict(zip(map(tuple, (prompt for _, prompt, _ in REQUESTS)), told_alone("061"), strict=False))
    for (reason, token_ids), session in zip(story.told(), story.sessions, strict=True):
        expected_reason, expected = alone[tuple(session.prompt_ids)]
        if reason == "cancelled":
            assert token_ids == expected[: len(token_ids)]
        else:
            assert (reason, token_ids) == (expected_reason, expected)
    heal(story.engine)
    check_empty(story.engine)


def submit_scene(parts: str, fork: bool) -> Scene:
    """Submit a prompt, or a fork, which may have to give its blocks back while it waits."""
    story = Story(parts)
    story.go_to(1)
    parent = story.sessions[0]
    session = story.engine.fork(parent) if fork else story.engine.new_session(parent.prompt_ids, parent.params)

    def check(interrupted, _):
        waits = session in story.scheduler.waiting
        story.engine.audit([*story.scheduler.waiting, *story.scheduler.running, *([] if waits else [session])])
        if fork and waits:
            with story.engine.guard:
                assert story.scheduler._preempt_newest()
            assert session.table is None, "nobody knew that it holds blocks"
        if session not in story.scheduler.waiting:
            assert interrupted
            story.scheduler.submit(session)
        story.sessions.append(session)
        story.made[session] = session.completion_ids
        story.finish()
        check_end(story)

    return Scene(lambda: story.scheduler.submit(session), check)


def cancel_scene(parts: str, step: int, number: int) -> Scene:
    """Cancel a session before a step: one that runs, a fork that waits, a prompt that waits."""
    story = Story(parts)
    story.go_to(step)
    session = story.sessions[number]

    def check(interrupted, _):
        story.scheduler.audit()
        assert session.finish_reason == "cancelled" or interrupted
        story.scheduler.cancel(session)
        story.finish()
        for other, told, expected in zip(story.sessions, story.told(), told_alone(parts), strict=False):
            assert other is session or told == expected
        heal(story.engine)
        check_empty(story.engine)

    return Scene(lambda: story.scheduler.cancel(session), check)


def manager_scene(parts: str, call: str) -> Scene:
    """Submit to a manager, cancel, or close it; whatever comes, others can use it on, and it can be closed."""
    engine = make_engine(parts)
    manager = SchedulerManager(OnlineScheduler(engine))
    streams = [manager.submit(prompt, wanted) for prompt, wanted in zip(PROMPTS[:2], WANTED, strict=False)]
    calls = {
        "submit": lambda: streams.append(manager.submit(PROMPTS[2], WANTED[2])),
        "cancel": streams[1].cancel,
        "close": manager.close,
        "drain": lambda: manager.close(drain=True),
    }

    def check(interrupted, _):
        for stream, expected in zip(streams, generated(), strict=False):
            tokens = [token.token_id for token in stream]
            assert tokens == expected[: len(tokens)]
            assert len(tokens) == len(expected) or call in ("cancel", "close")
        manager.close(drain=True)
        assert not manager.scheduler.has_work
        check_empty(engine)

    return Scene(calls[call], check)


def reader_scene(parts: str) -> Scene:
    """Read the first token of a manager's stream; one that an interrupt has kept from its reader is the next one."""
    engine = make_engine(parts)
    manager = SchedulerManager(OnlineScheduler(engine))
    stream = manager.submit(PROMPTS[0], WANTED[0])

    def check(interrupted, token):
        read = [token, *stream] if token else [*stream]
        assert [token.token_id for token in read] == generated()[0]
        assert "".join(token.text for token in read) == engine.detokenize(generated()[0])
        manager.close()
        check_empty(engine)

    return Scene(lambda: next(stream), check)


SCENES: dict[str, Callable[[str], Scene]] = {
    "generate": generate_scene,
    "stream to the end": lambda parts: stream_scene(parts, 9),
    "stream left early": lambda parts: stream_scene(parts, 2),
    "fork": fork_scene,
    "free": free_scene,
    "submit": lambda parts: submit_scene(parts, fork=False),
    "submit a fork": lambda parts: submit_scene(parts, fork=True),
    "cancel one that runs": lambda parts: cancel_scene(parts, 2, 1),
    "cancel a fork that waits": lambda parts: cancel_scene(parts, 3, 4),
    "cancel one that waits": lambda parts: cancel_scene(parts, 1, 2),
    "manager.submit": lambda parts: manager_scene(parts, "submit"),
    "manager.cancel": lambda parts: manager_scene(parts, "cancel"),
    "next(stream)": reader_scene,
    "manager.close": lambda parts: manager_scene(parts, "close"),
    "manager.close(drain=True)": lambda parts: manager_scene(parts, "drain"),
}
