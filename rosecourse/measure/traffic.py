"""Workload D, mixed traffic: what equal prompts do not show.

Some prompts begin alike, some requests are forked, and the pool is too small for the largest batch, so that it runs
dry at times. All requests arrive at once (`burst`) or at random (`load`, a Poisson process).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config import EngineConfig, SamplingParams
from .workload import Request, Workload

PROMPT_TOKENS = (5, 200)  # the shortest and the longest
BLOCK_SIZE = 16  # vLLM's default; the articles have 64
SHARED_PREFIXES, PREFIX_TOKENS = 3, 128
ONE_IN_PREFIXED, ONE_IN_FORKED = 4, 8
LOAD = 0.8  # of the rate at which the slowest engine of a comparison has served the burst


@dataclass(frozen=True)
class MixedTraffic:
    """How many requests, and the engine that they are too many for."""

    num_requests: int
    max_batch_size: int
    num_blocks: int  # of the pool: fewer than `max_batch_size` long requests need
    new_tokens: tuple[int, int] = (16, 256)  # of the shortest completion and of the longest
    seed: int = 0

    def __str__(self) -> str:
        forks, (fewest, most) = len(self.burst(2).params) - self.num_requests, self.new_tokens
        asked = f"{self.num_requests} requests and {forks} forks x {fewest} to {most} tokens"
        return f"{asked}, prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[1]}, batch {self.max_batch_size} (mixed)"

    @property
    def config(self) -> EngineConfig:
        """Of the engines: a small pool, and prefixes shared."""
        return EngineConfig(
            block_size=BLOCK_SIZE,
            max_batch_size=self.max_batch_size,
            num_blocks=self.num_blocks,
            max_seq_len=PROMPT_TOKENS[1] + self.new_tokens[1],
            prefix_cache=True,
        )

    def burst(self, vocab_size: int) -> Workload:
        """All requests at once."""
        return self._workload(vocab_size, np.zeros(self.num_requests))

    def load(self, vocab_size: int, rate: float) -> Workload:
        """The same requests, arriving at random. rate: requests a second, on the average; a fork comes with its own."""
        gaps = np.random.default_rng(self.seed).exponential(1 / rate, self.num_requests)
        return self._workload(vocab_size, np.cumsum(gaps))

    def _workload(self, vocab_size: int, arrivals: np.ndarray) -> Workload:
        draw = np.random.default_rng(self.seed)  # lengths, the same for every vocabulary
        tokens = np.random.default_rng([self.seed, vocab_size])
        prefixes = tokens.integers(1, vocab_size, (SHARED_PREFIXES, PREFIX_TOKENS))
        requests = []
        for number, arrival in enumerate(arrivals):
            length = np.exp(draw.uniform(np.log(PROMPT_TOKENS[0]), np.log(PROMPT_TOKENS[1] + 1)))  # each octave alike
            prompt = tokens.integers(1, vocab_size, int(length))
            if number % ONE_IN_PREFIXED == 0 and len(prompt) + PREFIX_TOKENS <= PROMPT_TOKENS[1]:
                prompt = np.concatenate([prefixes[draw.integers(SHARED_PREFIXES)], prompt])
            siblings = (self._params(draw),) if number % ONE_IN_FORKED == 0 else ()
            requests.append(Request(tuple(prompt.tolist()), self._params(draw), float(arrival), siblings))
        return Workload(tuple(requests))

    def _params(self, draw: np.random.Generator) -> SamplingParams:
        """Greedy: to sample in Python would take longer than the step."""
        most = int(draw.integers(*self.new_tokens, endpoint=True))
        return SamplingParams(max_new_tokens=most, stop_on_eos=False)


D = MixedTraffic(num_requests=128, max_batch_size=128, num_blocks=900)  # on a GPU
D_SMALL = MixedTraffic(num_requests=10, max_batch_size=16, num_blocks=52, new_tokens=(16, 128))  # on a laptop
