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
from ..kv.blocks import KVBlockManager
from ..kv.one_table import KVBlockManager as KVBlockManagerOfOneTable
from ..kv.padded import KVBlockManager as KVBlockManagerWithPads
from ..models.ops import LayerOps
from ..models.shape import Model
from .block_tables import l035_rebuilt_rows, l036_cached_rows, l062_one_row
from .copy_blocks import l063_one_by_one
from .delivery import l035_each_token
from .device_step import l066_one_by_one
from .forward import l035_paged, l063_append_in_forward, l069_attention_appends
from .kv_append import (
    l035_per_token,
    l038_batched,
    l059_rollover,
    l060_identity_const_pos,
    l061_triton_full_batch,
    l062_one_table,
)
from .ops import l070_five_kernels
from .pipeline import l035_in_step, l067_one_behind, l068_first_tokens
from .prefill import l035_by_groups
from .rows import l064_rows, l066_rows, l067_rows
from .runner import l066_copied_out
from .start import l035_read_first
from .step import l035_append_after_forward, l063_place_first, l064_rows_that_stay, l066_one_graph
from .workloads import C_ONE, A, ArticleWorkload, B, C, E

BASELINE = DecodeParts(
    cache=KVBlockManager,
    step=l035_append_after_forward.AppendAfterForward,
    block_tables=l035_rebuilt_rows.BlockTables,
    forward=l035_paged.DecodeForward,
    kv_append=l035_per_token.KVAppend,
    pipeline=l035_in_step.Pipeline,
    prefill=l035_by_groups.Prefill,
    start=l035_read_first.Start,
    delivery=l035_each_token.Delivery,
    ops=LayerOps,
)


@dataclass(frozen=True)
class Lesson:
    """One rung: the parts of the engine before and after the lesson (the same for the first), and what it is about.

    workload: what its article measures, and `rosecourse record` records.
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

    def diff(self) -> str:
        """The lesson as a unified diff of the source of the part before and after; empty for the first lesson."""
        lines: list[str] = []
        for name in self.changes:
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
        "block_tables": l036_cached_rows.BlockTables,
        "workload": A,
        "counted": ("tensors built from Python lists",),
        "about": "rows of block tables are kept until they change",
    },
    {
        "number": "038",
        "title": "batched KV append",
        "kv_append": l038_batched.KVAppend,
        "workload": A,
        "counted": ("append_token calls",),
        "about": "one append per layer, not per layer and request",
    },
    {
        "number": "059",
        "title": "batched rollover",
        "kv_append": l059_rollover.KVAppend,
        "workload": B,
        "counted": ("append_token calls",),
        "step_kind": "boundary",
        "about": "a full block no longer breaks up the batch",
        "headline": ("ITL", "p99"),
    },
    {
        "number": "060",
        "title": "identity and const pos",
        "kv_append": l060_identity_const_pos.KVAppend,
        "workload": B,
        "counted": ("tensors built from Python lists", "index_select"),
        "about": "no index tensors where none are needed",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "061",
        "title": "Triton full-batch append",
        "kv_append": l061_triton_full_batch.KVAppend,
        "workload": C,
        "kernels": ("kv_append_triton_full_batch",),
        "counted": ("index_put",),
        "about": "one kernel with next to no arguments",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "062",
        "title": "one table for all layers",
        "cache": KVBlockManagerOfOneTable,
        "block_tables": l062_one_row.BlockTables,
        "kv_append": l062_one_table.KVAppend,
        "workload": A,
        "counted": ("tensors built from Python lists", "bytes handed to the device"),
        "about": "a session has one list of blocks, not one for each layer",
    },
    {
        "number": "063",
        "title": "slots from the table",
        "step": l063_place_first.DecodeStep,
        "forward": l063_append_in_forward.DecodeForward,
        "kv_append": BEST.kv_append,
        "copy_blocks": l063_one_by_one.CopyBlocks,
        "workload": C,
        "kernels": ("kv_append_by_table",),
        "counted": ("tensors built from Python lists",),
        "about": "the device reads each slot off the table: any mix of positions is one case",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "064",
        "title": "rows that stay",
        "step": l064_rows_that_stay.DecodeStep,
        "block_tables": None,
        "rows": l064_rows.Rows,
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
        "about": "forks that write into shared blocks in the same step are copied together",
        "headline": ("ITL", "p99"),
    },
    {
        "number": "066",
        "title": "one CUDA graph",
        "cache": KVBlockManagerWithPads,
        "step": l066_one_graph.DecodeStep,
        "rows": l066_rows.Rows,
        "runner": l066_copied_out.GraphRunner,
        "device_step": l066_one_by_one.DeviceStep,
        "workload": A,
        "about": "the device's part of a step is recorded once and replayed with one launch",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "067",
        "title": "one step behind",
        "step": BEST.step,
        "rows": l067_rows.Rows,
        "pipeline": l067_one_behind.Pipeline,
        "workload": A,
        "about": "the host reads a step's tokens while the device runs the next one",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "068",
        "title": "delivery and start",
        "cache": BEST.cache,
        "rows": BEST.rows,
        "pipeline": l068_first_tokens.Pipeline,
        "prefill": BEST.prefill,
        "start": BEST.start,
        "delivery": BEST.delivery,
        "workload": C_ONE,
        "about": "readers are woken in turns; prefills wait for nothing and make no plans",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "069",
        "title": "fewer kernels",
        "forward": l069_attention_appends.DecodeForward,
        "ops": fewer_kernels.LayerOps,
        "device_step": BEST.device_step,
        "workload": A,
        "about": "what surrounds the matrix products is done in fewer kernels, and attention appends",
        "headline": ("total throughput", "mean"),
    },
    {
        "number": "070",
        "title": "five kernels a layer",
        "ops": l070_five_kernels.LayerOps,
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


def lesson(number: str) -> Lesson:
    """The lesson with a number, or the last one for `best`. Raises `LessonError` for one that is not there."""
    known = {rung.number: rung for rung in LESSONS}
    if not isinstance(number, str) or number not in (*known, "best"):
        raise LessonError(f"there is no lesson {shown(number)}: give one of {', '.join(known)}, or best")
    return known.get(number, LESSONS[-1])
