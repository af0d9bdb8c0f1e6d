"""From a command's flags to the articles' workloads that it measures. This imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..checks import require
from ..lessons import Lesson
from ..lessons.workloads import ARTICLES, SMALL, ArticleWorkload
from ..measure.metrics import DEFINITIONS
from ..measure.traffic import D_SMALL, D, MixedTraffic
from ..models.shape import Model
from ..records.assignments import Assignment, Order, article_assignment, burst_assignment
from ..records.names import BURST, workload_in
from ..records.recorder import UNITS
from .engines import config_of, ids_of
from .options import MIXED, Flags, command_line

__all__ = ["DEFINITIONS", "UNITS"]
SIZES = ("num_requests", "max_new_tokens", "max_batch_size")


def order_of(flags: Flags, model: Model, first: str | None = None) -> Order:
    """What is asked for, as it can be typed again. first: the rung to begin with."""
    settings = flags.settings
    ids = ids_of(flags.prompt, model)
    return Order(ids, flags.seed, config_of(flags), command_line(settings), settings, first)


def article_of(name: str, flags: Flags, known: Mapping[str, ArticleWorkload] = ARTICLES) -> ArticleWorkload:
    """An article's workload, with the sizes that the flags give instead."""
    return replace(known[name], **{size: vars(flags)[size] for size in SIZES if vars(flags)[size] is not None})


def traffic_of(model: Model, flags: Flags) -> MixedTraffic:
    """Mixed traffic for this device, with the sizes that the flags give instead."""
    sizes = {size: vars(flags)[size] for size in ("num_requests", "max_batch_size") if vars(flags)[size] is not None}
    return replace(D if model.device.type == "cuda" else D_SMALL, **sizes)


def on_this_device(flags: Flags, model: Model, rungs: Sequence[Lesson]) -> list[Assignment]:
    """The workloads that the flags name, of the articles' sizes on a GPU, smaller on a CPU, for these rungs."""
    order = order_of(flags, model)
    known = ARTICLES if model.device.type == "cuda" else SMALL
    tasks = [
        burst_assignment(traffic_of(model, flags), model.shape.vocab_size, order)
        if name == MIXED
        else article_assignment(article_of(name, flags, known), order)
        for name in flags.workloads.split(",")
    ]
    require_room(tasks, model.shape.context)
    return [replace(task, rungs=tuple(rungs)) for task in tasks]


def require_room(tasks: Sequence[Assignment], context: int) -> None:
    """Raise `ConfigError` for a request that the model can never serve, before the first run."""
    for task in tasks:
        given, longest = len(task.workload.prompts[0]), task.config.max_seq_len or 0
        require(min(map(len, task.workload.prompts)) > 0, "the prompt is empty: give at least one token")
        told, remedy = (
            f"a prompt of {given} tokens and {longest - given} new ones",
            "give a shorter prompt, or fewer --max-new-tokens",
        )
        if workload_in(task.name) == BURST:
            told, remedy = f"mixed traffic has requests of {longest} tokens, which", "leave D out"
        require(longest <= context, f"{told} do not fit into the model's {context}: {remedy}")
