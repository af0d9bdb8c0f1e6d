"""Whole engines with a part: the same greedy tokens as the baseline, with shared prefixes, forks and too few blocks."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...lessons import BASELINE
from ...measure.workload import Workload, run_scheduler, run_streaming
from ...models.gpt2 import GPT2, GPT2Shape
from ...request.session import InferenceSession
from . import Wrong
from .apart import STEP
from .layout import layout_of

STEPS = 600  # more than any of the engines needs
READING = 30  # threads
MIXED = (9, 1, 11, 10, 4, 3, 17, 2, 8, 12, 5, 7, 6, 13, 1, 9)
PERIOD = 65_537  # a prime: rows of a weight are not alike
ATTENTIVE = {"attn.c_attn": 0.5, "attn.c_proj": 4.0, "wpe": 2.0}  # part of a weight's name -> how much larger it is


@lru_cache
def attentive_gpt2(layers: int, heads: int, head_dim: int, context: int, device: str = "cpu") -> GPT2:
    """A GPT-2 with seeded weights by which a token depends much on what attention reads: one wrong number in the cache
    mostly shows in the greedy tokens that follow."""
    shape = GPT2Shape(vocab_size=97, context=context, width=heads * head_dim, num_layers=layers, num_heads=heads)
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.4 * _drawn(size, generator) for name, size in shape.parameters().items()}
    for name, weight in weights.items():
        if "bias" in name:
            weight.zero_()
        elif "ln_" in name:
            weight.fill_(1.0)
        weight *= next((factor for part, factor in ATTENTIVE.items() if part in name), 1.0)
    return GPT2(shape, {name: weight.to(device) for name, weight in weights.items()}, None, "random")


def _drawn(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal numbers. Those of a large weight come again after a while: to draw them all takes half a second."""
    numbers = torch.randn(min(prod(size), PERIOD), generator=generator)
    return numbers.repeat(-(-prod(size) // PERIOD))[: prod(size)].view(size)


@dataclass(frozen=True)
class Traffic:
    """An engine and its requests, of which one comes in each step. lengths: of the prompts, in tokens.

    stem: tokens with which every third prompt begins. forks: step -> the place in the batch of the session that is
    forked then. samples: of each prompt.
    """

    name: str
    sizes: tuple[int, int, int, int]  # slots of a block, blocks, sessions at a time, tokens of a session
    gates: tuple[int, int | None]
    lengths: tuple[int, ...]
    stem: int
    new_tokens: int
    forks: dict[int, int]
    heads: int = 2
    samples: int = 1

    def config(self) -> EngineConfig:
        block_size, num_blocks, batch, most = self.sizes
        return EngineConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            max_batch_size=batch,
            max_seq_len=most,
            triton_kv_append_min_batch=self.gates[0],
            triton_kv_append_full_batch_min_batch=self.gates[1],
        )

    def prompts(self) -> list[list[int]]:
        dice, words = random.Random(len(self.lengths)), range(1, 97)
        stem = dice.choices(words, k=self.stem)
        begun = [stem[: length - 1] if n % 3 == 0 else [] for n, length in enumerate(self.lengths)]
        return [begin + dice.choices(words, k=n - len(begin)) for begin, n in zip(begun, self.lengths, strict=True)]


TRAFFIC = (
    Traffic("blocks of 4 slots, room for all", (4, 120, 8, 48), (128, None), MIXED, 8, 14, {3: 0, 5: 2, 6: 1}),
    Traffic("blocks of 4 slots, too few of them", (4, 14, 8, 40), (2, None), MIXED, 8, 14, {3: 0, 5: 2, 6: 1}),
    Traffic("equal prompts, blocks of 8 slots", (8, 90, 16, 48), (128, 2), (6,) * 16, 0, 12, {9: 4}, heads=3),
    Traffic("4 samples of each prompt", (8, 90, 16, 48), (128, None), (5, 9, 16, 3), 8, 12, {2: 0, 5: 1}, samples=4),
    Traffic("few steps", (4, 60, 6, 32), (128, None), (5, 1, 8, 3), 0, 6, {4: 0}),
)


def same_tokens(parts: DecodeParts, device: str) -> str:
    """What was compared, in words. Raises `Wrong` with the first token that differs."""
    return _same(range(len(TRAFFIC) - 1), parts, device)


def few_tokens(parts: DecodeParts, device: str) -> str:
    """The same in few steps, for kernels that are interpreted."""
    return _same(range(len(TRAFFIC) - 1, len(TRAFFIC)), parts, device)


def _same(numbers: range, parts: DecodeParts, device: str) -> str:
    tokens = requests = 0
    for number in numbers:
        right, found = _baseline(number, device), _play(TRAFFIC[number], device, parts)
        _compare(right, found, TRAFFIC[number].name)
        tokens, requests = tokens + sum(map(len, right)), requests + len(right)
    engines = f"{len(numbers)} whole engine{'s' * (len(numbers) > 1)}"
    return f"{engines}: {tokens} tokens of {requests} requests are the baseline's"


def read_by_threads(parts: DecodeParts, device: str) -> str:
    """The same where a thread steps and others read, each a request; two bursts, with a pause between them."""
    params = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    prompts = [[3 * n + 1] * (1 + n % 7) for n in range(READING)]
    works = [Workload.of(some, params, readers="threads") for some in (prompts, prompts[::-2])]
    model, config = attentive_gpt2(1, 2, 8, 160), EngineConfig(block_size=8, max_batch_size=12, max_seq_len=32)
    right, engine = InferenceEngine(model, config, BASELINE), InferenceEngine(model, config, parts)
    for work in works:
        STEP.begin()
        _compare(run_scheduler(right, work).completions or [], run_streaming(engine, work).completions or [], "threads")
    return f"a whole engine with {READING} threads that read: all get the tokens of the baseline"


def in_chunks(parts: DecodeParts, device: str) -> str:
    """The same with a budget of tokens a step, to which the chunks of prompts are cut."""
    params = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    work = Workload.of([[3 * n + 1] * length for n, length in enumerate(MIXED)], params)
    config = EngineConfig(block_size=4, max_batch_size=4, max_seq_len=32)
    model = attentive_gpt2(2, 2, 8, 160, device)
    for budget in (4, 7, 64):
        STEP.begin()
        right = InferenceEngine(model, config, BASELINE)
        engine = InferenceEngine(model, replace(config, max_num_batched_tokens=budget), parts)
        expected, found = (run_scheduler(one, work).completions or [] for one in (right, engine))
        _compare(expected, found, f"a budget of {budget}")
    return f"3 whole engines of other budgets: {9 * len(MIXED)} tokens of {len(MIXED)} requests are the baseline's"


@lru_cache
def _baseline(number: int, device: str) -> list[list[int]]:
    return _play(TRAFFIC[number], device, BASELINE)


def _play(traffic: Traffic, device: str, parts: DecodeParts) -> list[list[int]]:
    """The tokens of all requests of a traffic, by an engine with these parts; the cache is audited at the end."""
    engine = InferenceEngine(attentive_gpt2(2, traffic.heads, 8, 160, device), traffic.config(), parts)
    scheduler, sessions = OnlineScheduler(engine), list[InferenceSession]()
    params = SamplingParams(max_new_tokens=traffic.new_tokens, stop_on_eos=False)
    prompts = traffic.prompts()

    def submit(session: InferenceSession, samples: int = 1) -> None:
        sessions.append(session)
        scheduler.submit(session, (params,) * (samples - 1))

    for step in range(STEPS):
        STEP.begin()
        if step < len(prompts):
            submit(engine.new_session(prompts[step], params), traffic.samples)
        if step in traffic.forks:
            _fork(engine, scheduler.running, traffic.forks[step], step, submit)
        if step >= len(prompts) and not scheduler.has_work:
            break
        scheduler.step()
    cached = engine.prefix_cache.entries() if engine.prefix_cache else []
    layout_of(engine.kv).audit(engine.kv, [], cached)
    return [sample.completion_ids for session in sessions for sample in session.samples]


def _fork(engine: InferenceEngine, running: Any, place: int, step: int, submit: Callable[..., None]) -> None:
    """A running session is forked, and the fork goes on with another word."""
    engine.settle()  # so that those that have ended do not run any more
    if place < len(running) and not running[place].finished:
        child = engine.fork(running[place])
        child.token_ids[-1] = 11 + step
        submit(child)


def _compare(right: list[list[int]], found: list[list[int]], where: str) -> None:
    for request, (tokens, theirs) in enumerate(zip(right, found, strict=True)):
        if tokens != theirs:
            pairs = enumerate(zip(tokens, theirs, strict=False))
            n = next((n for n, (token, other) in pairs if token != other), min(len(tokens), len(theirs)))
            raise Wrong(
                f"in a whole engine ({where}) request {request} gets other tokens from new token {n} on:\n"
                f"must be {tokens[n : n + 6]}; found: {theirs[n : n + 6]}"
            )
