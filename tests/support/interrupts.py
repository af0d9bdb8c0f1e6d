"""Interrupts at every line: what is done to an engine and a scheduler, and what must be true whenever one comes.

`strike` makes the call of a scene and sends SIGINT, by `signal.raise_signal`, in front of the n-th line of the package
(or the n-th call of one of its functions, where Python looks for signals too). Then everything runs on: all tokens must
be those of a run without an interrupt, returned once, and no block may be missing.
"""

import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel

import rosecourse
from rosecourse import BEST, EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, SchedulerManager
from tests.support import right_parts
from tests.support.machine import PARTS
from tests.support.tag_model import EOS, VOCAB, TagModel

SPOILED = 7  # a prompt that begins with this token gets NaN instead of its third logits


class UnsureModel(TagModel):
    """Its best token is as before, and sampling often takes another one; it has texts, the numbers of its tokens."""

    def __init__(self):
        super().__init__()
        words = tokenizers.Tokenizer(WordLevel({str(n): n for n in range(VOCAB)}, unk_token="0"))
        self.tokenizer = SimpleNamespace(eos_token_id=EOS, decode=words.decode, backend_tokenizer=words)

    def logits(self, hidden):
        return super().logits(hidden) / 250


MODEL = UnsureModel()
ENGINES = PARTS | {"own": BEST.with_(block_tables=right_parts.NumpyRows, kv_append=right_parts.IndexPut)}
TRACED = (str(Path(rosecourse.__file__).parent), right_parts.__file__)


class Line:
    """A context that sends SIGINT in front of the n-th line; it counts the lines up to there."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0

    def __enter__(self):
        self._tracer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info):
        sys.settrace(self._tracer)

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event in ("line", "call"):
            self.count += 1
            if self.count - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._trace


@dataclass
class Scene:
    """A call, and what must be true after it.

    check: gets whether the call was interrupted, and its result (None if so).
    """

    call: Callable
    check: Callable[[bool, object], None]


def strike(scene: Scene, at: int | None) -> int:
    """Make the call with an interrupt at a line; None is without. Returns how many lines were counted."""
    handler = signal.getsignal(signal.SIGINT)
    result, interrupted = None, False
    with Line(at) as line:
        try:
            result = scene.call()
        except KeyboardInterrupt:
            interrupted = True
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # nothing waits any more, and nothing holds it up
    assert interrupted == (at is not None and at < line.count), "the interrupt was swallowed"
    scene.check(interrupted, None if interrupted else result)
    return line.count


def strike_lines(make: Callable[[], Scene], number: int | None = None, seed: object = "") -> int:
    """Strike a scene, made anew for each, at so many of its lines; None is all of them. Returns at how many."""
    count = strike(make(), None)
    lines = range(count)
    chosen = lines if number is None or number >= count else sorted(random.Random(str(seed)).sample(lines, number))
    for at in chosen:
        try:
            strike(make(), at)
        except BaseException as error:
            error.add_note(f"an interrupt came at line {at} of {count}")
            raise
    return len(chosen)


# -- a story: everything that a scheduler does, in few steps ----------------------------------------------------------

STEM = [1, 2, 3, 4]
REQUESTS = [  # (before which step, prompt, new tokens); every second one is sampled
    (0, [*STEM, 5], 7),
    (0, [9, 8, 7], 9),
    (1, [*STEM, 5, 6], 6),  # a prefix hit
    (2, [SPOILED, 5], 6),
    (3, [11, 12, 13, 14, 15], 5),  # for which blocks of the prefix cache go
]
FORK_BEFORE_STEP, STEPS = 3, 9


def make_engine(parts: str, num_blocks: int = 9) -> InferenceEngine:
    config = EngineConfig(block_size=2, max_batch_size=4, num_blocks=num_blocks)
    return InferenceEngine(MODEL, config, ENGINES[parts])


def params(number: int, new: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new, stop_on_eos=False, temperature=number % 2, seed=number)


class Story:
    """A scheduler over a small pool: prefix hits and evictions, forks that copy, preemption, NaN, ends."""

    def __init__(self, parts: str) -> None:
        self.engine = make_engine(parts)
        self.scheduler = OnlineScheduler(self.engine)
        self.sessions, self.made = [], {}
        take_tokens = self.engine.take_tokens

        def spoiled(sessions, logits):
            rows = [n for n, s in enumerate(sessions) if s.prompt_ids[0] == SPOILED and len(s.completion_ids) == 2]
            return take_tokens(sessions, logits.index_fill(0, torch.tensor(rows, dtype=torch.int64), torch.nan))

        self.engine.take_tokens = spoiled

    def add(self, session) -> None:
        self.scheduler.submit(session)
        self.sessions.append(session)
        self.made[session] = list(session.completion_ids)

    def prepare(self, step: int) -> None:
        """What comes before a step."""
        for number, (before, prompt, new) in enumerate(REQUESTS):
            if before == step:
                self.add(self.engine.new_session(prompt, params(number, new)))
        if step == FORK_BEFORE_STEP:
            for parent in self.sessions[:2]:
                self.add(self.engine.fork(parent))
                self.sessions[-1].token_ids[-1] = self.made[self.sessions[-1]][-1] = 20  # it goes on with another token

    def take(self, new_tokens) -> None:
        for session, token in new_tokens:
            self.made[session].append(token)

    def go_to(self, step: int) -> None:
        """Everything that comes before the call of this step."""
        for number in range(step):
            self.prepare(number)
            self.take(self.scheduler.step())
        self.prepare(step)

    def finish(self) -> None:
        for _ in range(100):
            if not self.scheduler.has_work:
                break
            self.take(self.scheduler.step())
            self.scheduler.audit()
        assert not self.scheduler.has_work

    def told(self) -> list:
        assert all(self.made[session] == session.completion_ids for session in self.sessions), "not what steps returned"
        return [(session.finish_reason, session.token_ids) for session in self.sessions]


@cache
def told_alone(parts: str) -> list:
    """What a story tells where nothing interrupts it."""
    story = Story(parts)
    story.go_to(STEPS)
    story.finish()
    assert story.scheduler.stats.preemptions
    return story.told()


PROMPTS = [[*STEM, 5, 6, 1], [9, 8, 7, 1], [11, 12, 13, 14, 15, 1]]
WANTED = [params(number, 4) for number in range(3)]


@cache
def generated() -> list:
    """What `generate` gives where nothing interrupts it."""
    return [g.token_ids for g in make_engine("061", 64).generate(PROMPTS, WANTED)]


def check_empty(engine: InferenceEngine) -> None:
    """All blocks are there, and what the prefix cache knows is right."""
    engine.audit([])
    assert all(engine.kv.num_available(layer) == engine.kv.num_blocks for layer in range(engine.kv.num_layers))
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
        del story.engine.take_tokens
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
    del story.engine.take_tokens
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
            with story.engine.used_by(story.scheduler):
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
        del story.engine.take_tokens
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
