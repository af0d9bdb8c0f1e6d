"""The articles' workloads: which benchmark, and the sizes on its command line.

B is shorter than its articles': 64 requests, where they have 256. Its requests run 16 at a time, so that more of them
repeat the same steps; the articles' original engine was measured on this GPU with 64 as well (data/published.csv).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArticleWorkload:
    """What an article measures. Prefill takes as many prompts together as a decode step takes sessions.

    name: of its recordings; benchmark: the command, `benchmark_scheduler` or `benchmark_streaming`; max_new_tokens: of
    each request.
    """

    name: str
    benchmark: str
    num_requests: int
    max_new_tokens: int
    max_batch_size: int

    def __str__(self) -> str:
        sizes = f"{self.num_requests} requests x {self.max_new_tokens} tokens, batch {self.max_batch_size}"
        return f"{sizes} ({self.benchmark.removeprefix('benchmark_')})"


A = ArticleWorkload("A", "benchmark_scheduler", num_requests=64, max_new_tokens=512, max_batch_size=64)
B = ArticleWorkload("B", "benchmark_streaming", num_requests=64, max_new_tokens=256, max_batch_size=16)
C = ArticleWorkload("C", "benchmark_streaming", num_requests=128, max_new_tokens=128, max_batch_size=128)

ARTICLES = {work.name: work for work in (A, B, C)}
