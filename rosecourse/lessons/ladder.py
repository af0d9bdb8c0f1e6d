"""The ladder: each lesson is the one before it with a part of the decode step replaced, or a few of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import unified_diff
from typing import Any

from ..checks import shown
from ..config import EngineConfig
from ..decode import BEST, DecodeParts
from ..decode import ops as fewer_kernels
from ..engine.engine import InferenceEngine
from ..errors import LessonError
from ..models.ops import LayerOps
from ..models.shape import Model
from . import (
    l035,
    l035_blocks,
    l036,
    l038,
    l059,
    l060,
    l061,
    l062,
    l063,
    l064,
    l066,
    l067,
    l068,
    l069,
    l070,
    l073,
    l074,
)
from .workloads import C_ONE, A, ArticleWorkload, B, C, E

BASELINE = DecodeParts(
    cache=l035_blocks.KVBlockManager,
    step=l035.AppendAfterForward,
    block_tables=l035.BlockTables,
    forward=l035.DecodeForward,
    kv_append=l035.KVAppend,
    pipeline=l035.Pipeline,
    prefill=l035.Prefill,
    delivery=l035.Delivery,
    ops=LayerOps,
)


@dataclass(frozen=True)
class Lesson:
    """One rung: the parts of the engine before and after the lesson (the same for the first), and what it is about.

    workload: what its article measures, and `tools/record/runs.py` records.
    kernels: the functions whose kernels its part launches where Triton runs.
    counted: rows of `measure.counters.Counts` that a step has fewer of after the lesson.
    step_kind: the kind of decode step that it is about, a key of `measure.timeline.STEP_KINDS`.
    about: what changes, in a few words. headline: the figure that its article is about, a metric of
    `measure.metrics.UNITS` and a statistic.
    """

    number: str  # as in the series, such as "035"
    title: str
    before: DecodeParts
    after: DecodeParts
    workload: ArticleWorkload
    kernels: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    about: str = ""
    headline: tuple[str, str] = ("TPOT", "mean")
    step_kind: str = "inside"

    def then(
        self,
        number: str,
        title: str,
        workload: ArticleWorkload,
        *,
        kernels: tuple[str, ...] = (),
        counted: tuple[str, ...] = (),
        about: str = "",
        headline: tuple[str, str] = ("TPOT", "mean"),
        step_kind: str = "inside",
        **parts: Callable[..., Any],
    ) -> Lesson:
        """The next rung, which replaces these parts: `LESSONS[-1].then("062", "one table", A, block_tables=...)`."""
        after = self.after.with_(**parts)
        return Lesson(number, title, self.after, after, workload, kernels, counted, about, headline, step_kind)

    @property
    def changes(self) -> list[str]:
        """The names of the parts that the lesson replaces."""
        names = [field.name for field in fields(DecodeParts)]
        return [name for name in names if getattr(self.before, name) is not getattr(self.after, name)]

    def diff(self, *parts: str) -> str:
        """The lesson, or these of its parts, as a unified diff of the source before and after; empty for the first."""
        lines: list[str] = []
        for name in parts or self.changes:
            before, after = (_source(getattr(parts, name)) for parts in (self.before, self.after))
            lines += unified_diff(before, after, f"{name} before {self.number}", f"{name} after {self.number}", n=2)
        return "".join(lines)

    def engines(self, model: Model, config: EngineConfig | None = None) -> tuple[InferenceEngine, InferenceEngine]:
        """An engine as it is before the lesson and one as it is after it, over the same weights."""
        return InferenceEngine(model, config, self.before), InferenceEngine(model, config, self.after)


def _source(part: type | None) -> list[str]:
    """The lines of a part; none for one that the step does without."""
    return [] if part is None else inspect.getsource(part).splitlines(keepends=True)


def ladder(first: Lesson, *rungs: dict[str, Any]) -> list[Lesson]:
    """Lessons from the first one and, for each further rung, the arguments of `Lesson.then`."""
    lessons = [first]
    for rung in rungs:
        lessons.append(lessons[-1].then(**rung))
    return lessons


LESSONS = ladder(
    Lesson(
        "035",
        "paged decode baseline",
        BASELINE,
        BASELINE,
        A,
        about="the starting point: everything per layer and per request, in Python",
    ),
    {
        "number": "036",
        "title": "block-table cache",
        "block_tables": l036.BlockTables,
        "workload": A,
        "counted": ("tensors built from Python lists",),
        "about": "rows of block tables are kept until they change",
    },
    {
        "number": "038",
        "title": "batched KV append",
        "kv_append": l038.KVAppend,
        "workload": A,
        "counted": ("append_token calls",),
        "about": "one append per layer, not per layer and request",
    },
    {
        "number": "059",
        "title": "batched rollover",
        "kv_append": l059.KVAppend,
        "workload": B,
        "counted": ("append_token calls",),
        "step_kind": "boundary",
        "about": "a full block no longer breaks up the batch",
        "headline": ("ITL", "p99"),
    },
    {
        "number": "060",
        "title": "identity and const pos",
        "kv_append": l060.KVAppend,
        "workload": B,
        "counted": ("tensors built from Python lists", "index_select"),
        "about": "no index tensors where none are needed",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "061",
        "title": "Triton full-batch append",
        "kv_append": l061.KVAppend,
        "workload": C,
        "kernels": ("kv_append_triton_full_batch",),
        "counted": ("index_put",),
        "about": "one kernel, told only blocks and one slot",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "062",
        "title": "one table for all layers",
        "cache": BEST.cache,
        "block_tables": l062.BlockTables,
        "kv_append": l062.KVAppend,
        "workload": A,
        "counted": ("tensors built from Python lists", "bytes handed to the device"),
        "about": "one list of blocks per session, not per layer",
    },
    {
        "number": "063",
        "title": "slots from the table",
        "step": l063.DecodeStep,
        "forward": l063.DecodeForward,
        "kv_append": BEST.kv_append,
        "copy_blocks": l063.CopyBlocks,
        "workload": C,
        "kernels": ("kv_append_by_table",),
        "counted": ("tensors built from Python lists",),
        "about": "the device reads each slot off the table: any mix of positions is one case",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "064",
        "title": "rows that stay",
        "step": l064.DecodeStep,
        "block_tables": None,
        "rows": l064.Rows,
        "workload": C,
        "counted": ("bytes handed to the device",),
        "about": "a running session keeps its row on the device; a step uploads what changed",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "065",
        "title": "batched copy-on-write",
        "copy_blocks": BEST.copy_blocks,
        "workload": E,
        "counted": ("copy",),
        "step_kind": "fork",
        "about": "a step's copies of shared blocks are made together",
        "headline": ("ITL", "p99"),
    },
    {
        "number": "066",
        "title": "one CUDA graph",
        "step": l066.DecodeStep,
        "rows": l066.Rows,
        "runner": l066.GraphRunner,
        "device_step": l066.DeviceStep,
        "workload": A,
        "about": "the device's part of a step is recorded once and replayed with one launch",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "067",
        "title": "one step behind",
        "step": BEST.step,
        "rows": l067.Rows,
        "pipeline": l067.Pipeline,
        "workload": A,
        "about": "the host reads a step's tokens while the device runs the next one",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "068",
        "title": "delivery and start",
        "rows": BEST.rows,
        "pipeline": l068.Pipeline,
        "prefill": BEST.prefill,
        "delivery": BEST.delivery,
        "workload": C_ONE,
        "about": "a prefill waits for nothing, and a short one is a single replay; many readers are woken in turns",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "069",
        "title": "fewer kernels",
        "forward": l069.DecodeForward,
        "ops": fewer_kernels.LayerOps,
        "device_step": BEST.device_step,
        "workload": A,
        "about": "what surrounds the matrix products is done in fewer kernels, and attention appends",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "070",
        "title": "five kernels a layer",
        "ops": l070.LayerOps,
        "workload": A,
        "about": "matrix products of our own for few rows, with what surrounds them inside",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "071",
        "title": "the gaps between kernels",
        "forward": BEST.forward,
        "pipeline": BEST.pipeline,
        "ops": BEST.ops,
        "runner": BEST.runner,
        "workload": A,
        "about": "a kernel starts before the one before it has ended, and nothing is copied between two steps",
        "headline": ("total throughput", "mean"),
    },
)

# Lessons that are no rungs: all rungs run the other family, and a budget, a server or replicas are choices.
ASIDES = (
    Lesson(
        "073",
        "another family",
        BEST.with_(forward=l073.RepeatedHeads),
        BEST.with_(forward=l073.GroupedHeads),
        A,
        about="Llama-style models on the same ladder: query heads share K and V, which are read once a group",
        headline=("total throughput", "mean"),
    ),
    Lesson(
        "074",
        "chunked prefill",
        BEST.with_(fill=l074.FillStep),
        BEST,
        A,
        about="prompts are computed in chunks beside the sessions that decode, under a budget of tokens a step",
        headline=("ITL", "p99"),
    ),
    Lesson("075", "a server", BEST, BEST, A, about="an OpenAI-compatible server around an engine in its own process"),
    Lesson("076", "replicas", BEST, BEST, A, about="several servers, and a router that keeps a prefix on one of them"),
)


def lesson(number: str) -> Lesson:
    """The lesson with a number, or the last rung for `best`. Raises `LessonError` for one that is not there."""
    known = {rung.number: rung for rung in (*LESSONS, *ASIDES)}
    if not isinstance(number, str) or number not in (*known, "best"):
        raise LessonError(f"there is no lesson {shown(number)}: give one of {', '.join(known)}, or best")
    return known.get(number, LESSONS[-1])
