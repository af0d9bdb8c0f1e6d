"""A story for interrupts: everything that a scheduler does, in few steps, and what comes of it without one."""

from functools import cache
from types import SimpleNamespace

import tokenizers
from tokenizers.models import WordLevel

from rosecourse import EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, lesson
from tests.support import right_parts
from tests.support.failing import spoil
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
ENGINES = PARTS | {"own": lesson("061").after.with_(block_tables=right_parts.NumpyRows, kv_append=right_parts.IndexPut)}

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
        spoil(self.engine, lambda session: session.prompt_ids[0] == SPOILED and len(session.completion_ids) == 2)

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
