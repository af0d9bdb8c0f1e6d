"""The articles' workloads, and the course's own in their form: which benchmark, and the sizes on its command line.

B is shorter than its articles': 64 requests, where they have 256. Its requests run 16 at a time, so that more of them
repeat the same steps; the articles' original engine was measured on this GPU with 64 as well (data/published.csv).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ArticleWorkload:
    """What an article measures. Prefill takes as many prompts together as a decode step takes sessions.

    name: of its recordings; benchmark: the command, `benchmark_scheduler` or `benchmark_streaming`; num_requests: its
    prompts; max_new_tokens: of each completion; samples: completions of each prompt; prompt_length: tokens of each
    prompt, no two of which are alike; 0 is the articles' one prompt for all. readers: of its streams, a key of
    `measure.readers.READERS`.
    """

    name: str
    benchmark: str
    num_requests: int
    max_new_tokens: int
    max_batch_size: int
    samples: int = 1
    prompt_length: int = 0
    readers: str = "sequential"

    def __str__(self) -> str:
        many = self.samples > 1
        asked = f"{self.num_requests} prompts x {self.samples} samples" if many else f"{self.num_requests} requests"
        sizes = f"{asked} x {self.max_new_tokens} tokens, batch {self.max_batch_size}"
        readers = f", readers: {self.readers}" if self.readers != "sequential" else ""
        return f"{sizes} ({self.benchmark.removeprefix('benchmark_')}{readers})"

    @property
    def a_quarter(self) -> ArticleWorkload:
        """The same for a laptop: a quarter of the prompts, of the tokens of each completion, and of the batch."""
        return replace(
            self,
            num_requests=self.num_requests // 4,
            max_new_tokens=self.max_new_tokens // 4,
            max_batch_size=self.max_batch_size // 4,
        )


A = ArticleWorkload("A", "benchmark_scheduler", num_requests=64, max_new_tokens=512, max_batch_size=64)
B = ArticleWorkload("B", "benchmark_streaming", num_requests=64, max_new_tokens=256, max_batch_size=16)
C = ArticleWorkload("C", "benchmark_streaming", num_requests=128, max_new_tokens=128, max_batch_size=128)

# Parallel sampling, lesson 065: 8 samples of each prompt, which share its last block of 64 tokens. A sample has 63 gaps
# between its tokens, and one of them comes right after the fork: it is what ITL p99 shows.
E = ArticleWorkload(
    "E", "benchmark_scheduler", num_requests=16, max_new_tokens=64, max_batch_size=128, samples=8, prompt_length=100
)

# A quarter of A's requests: where a step's work is small, what it waits for weighs more (lesson 066).
F = ArticleWorkload("F", "benchmark_scheduler", num_requests=16, max_new_tokens=512, max_batch_size=16)

# C once more, with other readers than the articles' (lesson 068). Its decode steps are the same.
C_ONE = replace(C, name="C-one", readers="one")
C_THREADS = replace(C, name="C-threads", readers="threads")
C_ASYNCIO = replace(C, name="C-asyncio", readers="asyncio")

# C's requests in a scheduler without streams: all lengths stay equal, as lesson 061's gate wants them.
C_SCHEDULER = replace(C, name="C-scheduler", benchmark="benchmark_scheduler")

WITH_STEPS = {work.name: work for work in (A, B, C, E, F)}  # those whose decode steps differ, and are recorded too
ARTICLES = WITH_STEPS | {work.name: work for work in (C_ONE, C_THREADS, C_ASYNCIO, C_SCHEDULER)}
SMALL = {name: work.a_quarter for name, work in ARTICLES.items()}


def name_of_steps(work: ArticleWorkload) -> str:
    """The name under which the decode steps of a workload are recorded: who reads its tokens changes none of them."""
    alike = (name for name, one in WITH_STEPS.items() if replace(one, name=work.name, readers=work.readers) == work)
    return next(alike, work.name)
