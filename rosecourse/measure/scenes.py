"""Short scenes in which requests are served to their ends, to compare the tokens of two engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..engine.scheduler import OnlineScheduler, SchedulerStats
from ..request.session import InferenceSession, Prompt

Served = tuple[list[int], str | None]  # the tokens of a completion, and why it ended
Event = Callable[[InferenceEngine, OnlineScheduler, dict[str, InferenceSession]], None]


def served(
    engine: InferenceEngine,
    prompts: Sequence[Prompt],
    does: Event | None = None,
    after: int = 0,
    samples: int = 1,
    new_tokens: int = 14,
) -> tuple[dict[str, Served], SchedulerStats]:
    """The completions of some prompts by name, `request 0.1` being the second sample of the first, and what it took.

    Every other request is sampled, and every third asks for as many tokens. does: called once after so many steps, with
    the sessions by name, to which it may add. The cache is audited in the end.
    """
    scheduler, sessions = OnlineScheduler(engine), {}
    for number, prompt in enumerate(prompts):
        most, temperature = new_tokens + number % 3, 0.8 * (number % 2)
        asked = [SamplingParams(max_new_tokens=most, temperature=temperature, seed=n) for n in range(samples)]
        sessions[f"request {number}"] = engine.new_session(prompt, asked[0])
        scheduler.submit(sessions[f"request {number}"], asked[1:])
    for _ in range(after):
        scheduler.step()
    if does:
        does(engine, scheduler, sessions)
    scheduler.run()
    scheduler.audit()
    return {
        f"{name}.{n}": (one.completion_ids, one.finish_reason)
        for name, session in sessions.items()
        for n, one in enumerate(session.samples)
    }, scheduler.stats


def same_completions(one: Mapping[str, Served], other: Mapping[str, Served]) -> bool:
    """Whether two engines have served the same requests with the same tokens.

    A request that was cancelled has what was read until then: of two, one has to be the beginning of the other.
    """
    return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)


def _alike(one: Served, other: Served) -> bool:
    (tokens, reason), (others, its) = one, other
    if "cancelled" in (reason, its):
        return all(a == b for a, b in zip(tokens, others, strict=False))
    return one == other
