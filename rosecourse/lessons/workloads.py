"""The articles' workloads: which benchmark, and the sizes on its command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArticleWorkload:
    """What an article measures. Prefill takes as many prompts together as a decode step takes sessions.

    benchmark: the command, `benchmark_scheduler` or `benchmark_streaming`; max_new_tokens: of each request.
    """

    benchmark: str
    num_requests: int
    max_new_tokens: int
    max_batch_size: int


A = ArticleWorkload("benchmark_scheduler", num_requests=64, max_new_tokens=512, max_batch_size=64)
B = ArticleWorkload("benchmark_streaming", num_requests=256, max_new_tokens=256, max_batch_size=16)
C = ArticleWorkload("benchmark_streaming", num_requests=128, max_new_tokens=128, max_batch_size=128)
