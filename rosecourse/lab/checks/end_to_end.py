"""Whole engines with the learner's part: the same greedy tokens as the baseline, in hard traffic."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...errors import BlockError
from ...kv.pool import KVPool
from ...lessons import BASELINE
from ...request.session import InferenceSession
from ..world.causes import Cause
from ..world.fault import Fault, PartIsWrong
from ..world.layout import layout_of
from ..world.tiny_gpt2 import attentive_gpt2
from .trial import Trial

NAME = "a whole engine: mixed prompts, shared prefixes, forks, and too few blocks for all of them"
REASON = "what a step read is not what was appended before"
STEPS = 600  # more than any of the engines needs
FORKED_WITH = 11  # the word with which a fork goes on


@dataclass(frozen=True)
class Traffic:
    """An engine and its requests. forks: step -> the place in the batch of the session that is forked then.

    samples: of each prompt. part: the kind of part for which it is played; empty: for all.
    """

    name: str
    config: EngineConfig
    lengths: tuple[int, ...]  # of the prompts, in tokens; one comes in each step
    stem: int  # tokens with which every third prompt begins
    new_tokens: int
    forks: dict[int, int]
    heads: int = 2
    samples: int = 1
    part: str = ""

    def prompts(self) -> list[list[int]]:
        dice = random.Random(len(self.lengths))
        words = range(1, 97)
        stem = dice.choices(words, k=self.stem)
        begun = [stem[: length - 1] if n % 3 == 0 else [] for n, length in enumerate(self.lengths)]
        return [begin + dice.choices(words, k=n - len(begin)) for begin, n in zip(begun, self.lengths, strict=True)]


def _config(block_size: int, num_blocks: int, batch: int, most: int, gates: tuple[int, int | None]) -> EngineConfig:
    return EngineConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        max_batch_size=batch,
        max_seq_len=most,
        triton_kv_append_min_batch=gates[0],
        triton_kv_append_full_batch_min_batch=gates[1],
    )


MIXED = (9, 1, 11, 10, 4, 3, 17, 2, 8, 12, 5, 7, 6, 13, 1, 9)
TRAFFIC = (
    Traffic("blocks of 4 slots, room for all", _config(4, 120, 8, 48, (128, None)), MIXED, 8, 14, {3: 0, 5: 2, 6: 1}),
    Traffic("blocks of 4 slots, too few of them", _config(4, 14, 8, 40, (2, None)), MIXED, 8, 14, {3: 0, 5: 2, 6: 1}),
    Traffic(
        "blocks of 64 slots, 24 sessions at once",
        _config(64, 80, 24, 160, (128, 3)),
        (*range(40, 68, 2), 62, 63, 64, 65, 120, 126, 127, 128, 3, 1),
        64,
        20,
        {12: 3, 20: 0, 26: 7},
    ),
    Traffic("equal prompts, blocks of 8 slots", _config(8, 90, 16, 48, (128, 2)), (6,) * 16, 0, 20, {18: 4}, heads=3),
    Traffic(
        "4 samples of each prompt, blocks of 8 slots",
        _config(8, 90, 16, 48, (128, None)),
        (5, 9, 16, 3, 14, 22),
        8,
        12,
        {2: 0, 5: 1, 9: 3},
        samples=4,
        part="copy_blocks",
    ),
)


@dataclass
class Played:
    """What came of it. made: for each request the steps in which its tokens were made. notes: (step, request) -> what
    was special about a request then. left: step -> the requests that left the batch in it."""

    sessions: list[InferenceSession] = field(default_factory=list)
    made: list[list[int]] = field(default_factory=list)
    notes: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    left: dict[int, list[int]] = field(default_factory=dict)

    @property
    def completions(self) -> list[list[int]]:
        return [session.completion_ids for session in self.sessions]


Call = Callable[..., Any]  # calls a function with arguments, in its own way


def same_tokens(trial: Trial) -> str:
    """What was compared, in words. Raises `PartIsWrong` with the first token that differs."""
    tokens = requests = 0
    parts = trial.parts_with(trial.course.world.in_an_engine(trial.learner))
    numbers = [n for n, traffic in enumerate(TRAFFIC) if traffic.part in ("", trial.course.world.part)]
    for number in numbers:
        right = _baseline(number, trial.device)
        _compare(right, _play(number, trial.device, parts), TRAFFIC[number].name)
        tokens += sum(map(len, right.completions))
        requests += len(right.sessions)
    _look_unseen(trial)
    return f"{len(numbers)} whole engines: {tokens} tokens of {requests} requests, all those of the baseline"


@lru_cache
def _baseline(number: int, device: str) -> Played:
    """The baseline's; once is enough."""
    return _play(number, device, BASELINE)


# -- a part that looks who calls it -----------------------------------------------------------------------------------

UNSEEN = 0  # the traffic that is played once more


def _look_unseen(trial: Trial) -> None:
    """The first traffic once more, by the class itself, in a thread on whose stack there is nothing but the engine.

    Raises `PartIsWrong` for a part that does otherwise there.
    """
    with ThreadPoolExecutor(1) as elsewhere:

        def call(function: Call, *arguments: Any) -> Any:
            trial.learner.alive()
            return elsewhere.submit(function, *arguments).result()

        try:
            played = _play(UNSEEN, trial.device, trial.parts_with(trial.learner.part), call)
            _compare(_baseline(UNSEEN, trial.device), played, TRAFFIC[UNSEEN].name)
        except PartIsWrong as wrong:
            found, details = wrong.fault.what, wrong.fault.details
        except BaseException as error:
            found, details = f"it raised {type(error).__name__}: {error}", ()
        else:
            return
    what = f"the part does otherwise where none of the checker's functions calls it: {found}"
    raise PartIsWrong(Fault(what, details, "a part must not look who calls it", cause=Cause.TAMPERING))


# -- the traffic ------------------------------------------------------------------------------------------------------


def _here(function: Call, *arguments: Any) -> Any:
    return function(*arguments)


def _play(number: int, device: str, parts: DecodeParts, call: Call = _here) -> Played:
    """All requests of a traffic, by an engine with these parts; the cache is checked at the end.

    call: how the engine is made, and how its scheduler is stepped.
    """
    traffic, played = TRAFFIC[number], Played()
    engine = call(InferenceEngine, attentive_gpt2(2, traffic.heads, 8, 160, device), traffic.config, parts)
    scheduler = OnlineScheduler(engine)
    prompts = traffic.prompts()
    params = SamplingParams(max_new_tokens=traffic.new_tokens, stop_on_eos=False)
    for step in range(STEPS):
        if step < len(prompts):
            siblings = (params,) * (traffic.samples - 1)
            _submit(played, scheduler, engine.new_session(prompts[step], params), siblings)
        place, running = traffic.forks.get(step), scheduler.running
        if place is not None:
            engine.settle()  # so that those that have ended do not run any more
        if place is not None and place < len(running) and not running[place].finished:
            child = engine.fork(running[place])
            child.token_ids[-1] = FORKED_WITH + step  # it goes on with another word
            _submit(played, scheduler, child)
        if step >= len(prompts) and not scheduler.has_work:
            break
        _step(played, scheduler, engine.kv, step, call)
    cached = engine.prefix_cache.entries() if engine.prefix_cache else []
    try:
        layout_of(engine.kv).audit(engine.kv, [], cached)
    except BlockError as error:
        raise PartIsWrong(
            Fault(f"when all requests had ended, the pool was damaged: {error}", cause=Cause.BOOKS_WRONG)
        ) from None
    return played


def _submit(
    played: Played, scheduler: OnlineScheduler, session: InferenceSession, siblings: tuple[SamplingParams, ...] = ()
) -> None:
    _note(played, session)
    scheduler.submit(session, siblings)


def _note(played: Played, session: InferenceSession) -> None:
    played.sessions.append(session)
    played.made.append([-1] * len(session.completion_ids))


def _step(played: Played, scheduler: OnlineScheduler, kv: KVPool, step: int, call: Call) -> None:
    before = list(scheduler.running)
    for session in before:
        notes = _special(session, kv)
        if notes:
            played.notes[step, played.sessions.index(session)] = notes
    call(scheduler.step)
    for sample in [sample for session in played.sessions for sample in session.forks]:
        if sample not in played.sessions:
            _note(played, sample)
    played.left[step] = [played.sessions.index(s) for s in before if s not in scheduler.running]
    for session, made in zip(played.sessions, played.made, strict=True):
        made += [step] * (len(session.completion_ids) - len(made))


def _special(session: InferenceSession, kv: KVPool) -> list[str]:
    """What an append to a session has to see to before it writes."""
    layout = layout_of(kv)
    ids = layout.id_lists(kv, session.table)[0] if session.table else []
    info = layout.info(kv, ids[-1]) if ids else None
    if info is None:
        return []
    if session.num_cached_tokens == len(ids) * kv.block_size:
        return ["its last block was full"]
    return ["it shared its last block"] if info.owners > 1 else []


# -- the verdict ------------------------------------------------------------------------------------------------------


def _compare(right: Played, given: Played, where: str) -> None:
    """Raises `PartIsWrong` with the token that differs first in time, and what was special about the steps before."""
    if len(given.sessions) != len(right.sessions):
        what = f"with the part the engine has served {len(given.sessions)} requests; the baseline served "
        raise PartIsWrong(
            Fault(what + str(len(right.sessions)), (f"where:    {where}",), REASON, cause=Cause.VALUES_CHANGED)
        )
    firsts = [
        (_step_of(right, request, position), request, position)
        for request, (tokens, theirs) in enumerate(zip(right.completions, given.completions, strict=True))
        if (position := _first_difference(tokens, theirs)) is not None
    ]
    if firsts:
        _tell(right, given, where, min(firsts), len(firsts))


def _first_difference(tokens: Sequence[int], theirs: Sequence[int]) -> int | None:
    if tokens == theirs:
        return None
    pairs = enumerate(zip(tokens, theirs, strict=False))
    return next((n for n, (token, other) in pairs if token != other), min(len(tokens), len(theirs)))


def _step_of(played: Played, request: int, position: int) -> int:
    """The step in which a token was made; for one behind the last, the last step."""
    return played.made[request][min(position, len(played.made[request]) - 1)]


def _tell(right: Played, given: Played, where: str, first: tuple[int, int, int], wrong: int) -> None:
    step, request, position = first
    tokens, theirs = right.completions[request], given.completions[request]
    what = f"request {request}, new token {position}: "
    if position >= len(theirs):
        reason = given.sessions[request].finish_reason
        nan = " (its logits were NaN)" if reason == "error" else ""
        what += f"there is none, the request ended after {len(theirs)}{nan}; the baseline makes {len(tokens)}"
    elif position >= len(tokens):
        what += f"it is {theirs[position]}; the baseline makes {len(tokens)} tokens and ends"
    else:
        what += f"it is {theirs[position]}; the baseline's is {tokens[position]}"
    details = (
        f"expected: {tokens[max(0, position - 3) : position + 3]}, from new token {max(0, position - 3)} on",
        f"found:    {theirs[max(0, position - 3) : position + 3]}",
        f"where:    {where}; {wrong} of {len(right.sessions)} requests get other tokens",
        *_what_was_special(right, request, step),
    )
    raise PartIsWrong(Fault(what, details, REASON, cause=Cause.VALUES_CHANGED))


def _what_was_special(right: Played, request: int, step: int) -> tuple[str, ...]:
    """What had happened in this step and the two before it: to the request, and to the batch."""
    told = []
    for at in range(max(0, step - 2), step + 1):
        told += [f"{note} (step {at})" for note in right.notes.get((at, request), [])]
        gone = ", ".join(map(str, right.left.get(at, [])))
        told += [f"request {gone} left the batch (step {at})"] if gone and at < step else []
    return (f"just before: {'; '.join(told)}",) if told else ()
