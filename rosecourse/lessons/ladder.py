"""The ladder: each lesson is the one before it with a part of the decode step replaced, or a few of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import unified_diff
from typing import Any

from ..checks import shown
from ..config import EngineConfig
from ..decode import BEST, AppendAfterForward, DecodeParts
from ..decode.forward import DecodeForward
from ..engine.engine import InferenceEngine
from ..errors import LessonError
from ..kv.blocks import KVBlockManager
from ..models.shape import Model
from .block_tables import l035_rebuilt_rows
from .kv_append import l035_per_token, l038_batched, l059_rollover, l060_identity_const_pos
from .workloads import A, ArticleWorkload, B, C

BASELINE = DecodeParts(
    cache=KVBlockManager,
    step=AppendAfterForward,
    block_tables=l035_rebuilt_rows.BlockTables,
    forward=DecodeForward,
    kv_append=l035_per_token.KVAppend,
)


@dataclass(frozen=True)
class Diff:
    """A unified diff that a notebook shows in colours."""

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```diff\n{self.text}```"


@dataclass(frozen=True)
class Lesson:
    """One rung: the parts of the engine before and after the lesson (the same for the first), and what it is about.

    workload: what its article measures, and `rosecourse record` records.
    kernels: the functions whose kernels its part launches where Triton runs.
    counted: rows of `measure.counters.Counts` that a step has fewer of after the lesson.
    step: the kind of decode step that it is about, a key of `measure.timeline.STEP_KINDS`.
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
    step: str = "inside"

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
        step: str = "inside",
        **parts: Callable[..., Any],
    ) -> Lesson:
        """The next rung, which replaces these parts: `LESSONS[-1].then("062", "one table", A, block_tables=...)`."""
        after = self.after.with_(**parts)
        return Lesson(number, title, self.after, after, workload, kernels, counted, about, headline, step)

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

    def show_diff(self) -> Diff:
        """The same, for a notebook."""
        return Diff(self.diff())

    def engines(self, model: Model, config: EngineConfig | None = None) -> tuple[InferenceEngine, InferenceEngine]:
        """An engine as it is before the lesson and one as it is after it, over the same weights."""
        return InferenceEngine(model, config, self.before), InferenceEngine(model, config, self.after)


def _source(part: type) -> list[str]:
    return inspect.getsource(part).splitlines(keepends=True)


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
        "block_tables": BEST.block_tables,
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
        "step": "boundary",
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
        "kv_append": BEST.kv_append,
        "workload": C,
        "kernels": ("kv_append_triton_full_batch",),
        "counted": ("index_put",),
        "about": "one kernel with next to no arguments",
        "headline": ("total throughput", "mean"),
    },
)


def lesson(number: str) -> Lesson:
    """The lesson with a number, or the last one for `best`. Raises `LessonError` for one that is not there."""
    known = {rung.number: rung for rung in LESSONS}
    if not isinstance(number, str) or number not in (*known, "best"):
        raise LessonError(f"there is no lesson {shown(number)}: give one of {', '.join(known)}, or best")
    return known.get(number, LESSONS[-1])
