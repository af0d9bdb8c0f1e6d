"""What maintainers record: each workload with its engines' configuration, its rungs, and who runs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rosecourse.config import EngineConfig, SamplingParams
from rosecourse.lessons import LESSONS, Lesson
from rosecourse.lessons.workloads import ARTICLES, SMALL, ArticleWorkload
from rosecourse.measure.traffic import D_SMALL, LOAD, D
from rosecourse.measure.workload import RUNNERS, Runner, Workload, run_scheduler
from rosecourse.models.shape import Model
from rosecourse.records import runs

PROMPT = "Hello"  # the articles' prompt
SMALL_VOCABULARY = 256  # token ids that every model of the course has
# The first rung that is measured under a workload; the whole ladder under A, B and C-one.
FIRST = {"C": "060", "C-scheduler": "060", "C-threads": "067", "C-asyncio": "067", "E": "063", "F": "061"}
FIRST |= {runs.BURST: "038", runs.LOAD: "061"}


def gpu_folder(gpu: str) -> str:
    """A GPU's name as the name of its folder: `NVIDIA H200` is `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


@dataclass(frozen=True)
class Task:
    """A workload to measure. config: of its engines; rungs: the lessons' engines that are measured."""

    name: str
    workload: Workload
    config: EngineConfig
    rungs: tuple[Lesson, ...]
    runner: Runner = run_scheduler


def article_task(work: ArticleWorkload, model: Model) -> Task:
    """A workload of an article's form: equal prompts, or random ones where it has a length for them."""
    prompts = [tuple(model.tokenizer.encode(PROMPT))] * work.num_requests
    if work.prompt_length:
        draw = np.random.default_rng(0)
        prompts = [
            tuple(row) for row in draw.integers(1, SMALL_VOCABULARY, (work.num_requests, work.prompt_length)).tolist()
        ]
    params = SamplingParams(max_new_tokens=work.max_new_tokens, stop_on_eos=False)
    workload = Workload.of(prompts, params, samples=work.samples, readers=work.readers)
    largest = min(work.max_batch_size, work.num_requests * work.samples)
    longest = len(prompts[0]) + work.max_new_tokens
    config = EngineConfig(max_batch_size=largest, max_seq_len=longest, prefix_cache=False)
    return Task(work.name, workload, config, tuple(LESSONS), RUNNERS[work.benchmark])


def burst_task(model: Model) -> Task:
    """Mixed traffic, all at once."""
    traffic = D if model.device.type == "cuda" else D_SMALL
    return Task(runs.BURST, traffic.burst(model.shape.vocab_size), traffic.config, tuple(LESSONS))


def load_task(model: Model, burst_seconds: Sequence[float]) -> Task:
    """Mixed traffic over time, at a share of the rate at which a burst was served in so many seconds."""
    traffic = D if model.device.type == "cuda" else D_SMALL
    rate = LOAD * traffic.num_requests / float(np.median(burst_seconds))
    return Task(runs.LOAD, traffic.load(model.shape.vocab_size, rate), traffic.config, tuple(LESSONS))


def task_of(name: str, model: Model, burst_seconds: Sequence[float] | None = None) -> Task:
    """A workload by its name, of the articles' size on a GPU, a quarter of it on a CPU. burst_seconds: for a load."""
    if name == runs.BURST:
        return burst_task(model)
    if name == runs.LOAD:
        return load_task(model, [] if burst_seconds is None else list(burst_seconds))
    return article_task((ARTICLES if model.device.type == "cuda" else SMALL)[name], model)


def from_first(task: Task) -> Task:
    """The same with the rungs that are recorded under it."""
    return replace(task, rungs=tuple(rung for rung in task.rungs if rung.number >= FIRST.get(task.name, "")))
