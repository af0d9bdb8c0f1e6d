"""What a runner does in a step: graphs captured, warmed up and replayed, the work run by hand, and anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...decode.inputs import DecodeInputs
from ...decode.runner import DeviceStep, Outcome
from ...errors import CaptureError
from ...measure.counters import DispatchMode
from .cpu_graph import CPUGraph
from .graph_makers import cpu_graphs_by

TENSORS = ("token_ids", "context_lens", "block_tables")
NO_DATA = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")  # operations that write nothing


@dataclass(frozen=True)
class Run:
    """The work, run over some rows, or captured.

    of_a_step: with the inputs of one step. frozen: which tensor of the inputs is not the rows' own; empty for none.
    live: how many sessions sat in the rows; 0 in a capture, which does nothing to them. after_capture: whether a graph
    had been captured in the same step before.
    """

    rows: int
    sampled: bool
    of_a_step: bool
    longest: int
    frozen: str
    live: int
    after_capture: bool


@dataclass(frozen=True)
class GraphsSeen:
    """What was counted in a step.

    outside: operations that the host launched one by one. captures, replays: of graphs. rows: over how many rows the
    graph of the step runs. shared: tensors of the outcome that lie in the memory of a graph. cold: graphs that were
    captured, here or at the start, before their kind of step had run once. needless: replays of graphs that sample,
    though no session does. made: graphs captured here, at the start, or between.
    """

    outside: int = 0
    captures: int = 0
    replays: int = 0
    rows: int = 0
    shared: int = 0
    cold: int = 0
    needless: int = 0
    made: int = 0


NO_GRAPHS = GraphsSeen()


class WatchedGraph(CPUGraph):
    """A graph of a CPU that notes what is done with it, and whose warm-up runs the work, as that of a GPU does."""

    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self.log = log
        self.run: Run | None = None  # what it holds

    def warm_up(self, work: Callable[[], None]) -> None:
        with self.log.aside():
            work()

    def capture(self, work: Callable[[], None]) -> None:
        self.log.captured(self)
        with self.log.aside(self):
            super().capture(work)

    def replay(self) -> None:
        self.log.replayed(self)
        with self.log.aside():
            super().replay()


class RunLog:
    """What happened since `begin`.

    captures, replays: the graphs, in their order. runs: of the work, without those that were captured. outside: torch
    operations that move data, in none of these. only_pads: whether the last replay found no session. cold,
    made: see `GraphsSeen`. unwatched: whether a graph that does not come from `graphs_for` has captured the work.
    """

    def __init__(self) -> None:
        self.cold = 0
        self.made = 0
        self.unwatched = False
        self._warm: set[bool] = set()  # the kinds of steps (sampled or not) that have run once
        self._memory: list[torch.Tensor] = []  # what captured work has made
        self._aside = False
        self._capturing: WatchedGraph | None = None
        self._work: DeviceStep | None = None
        self.sampled = False  # whether any session of the step samples
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.captures: list[WatchedGraph] = []
        self.replays: list[WatchedGraph] = []
        self.runs: list[Run] = []
        self.outside = 0
        self.shared = 0
        self.only_pads = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In here the graphs of `graphs_for` are watched, and operations outside them are counted."""
        with cpu_graphs_by(lambda: WatchedGraph(self)), _Outside(self):
            yield

    @contextmanager
    def aside(self, capturing: WatchedGraph | None = None) -> Iterator[None]:
        """In here operations are a graph's own, or its warm-up's."""
        before = self._aside, self._capturing
        self._aside, self._capturing = True, capturing
        try:
            yield
        finally:
            self._aside, self._capturing = before

    @property
    def counting(self) -> bool:
        return not self._aside

    def captured(self, graph: WatchedGraph) -> None:
        self.captures.append(graph)

    def replayed(self, graph: WatchedGraph) -> None:
        self.replays.append(graph)
        if self._work is not None and graph.run is not None:
            with self.aside():
                self.only_pads = self._live(self._work, graph.run.rows) == 0

    def run(
        self, run: Callable[[DecodeInputs, bool], Outcome], work: DeviceStep, inputs: Any, sampled: bool
    ) -> Outcome:
        """Let the work run, or be captured, and note it."""
        graph, self._work = self._capturing, work
        with self.aside(graph):  # what is read here, the part has not asked for
            live = 0 if graph else self._live(work, len(inputs.token_ids))
        noted = _noted(work, inputs, bool(sampled), live, bool(self.captures))
        outcome = run(inputs, sampled)
        if graph is None:
            self._warm.add(noted.sampled)
            self.runs.append(noted)
        else:
            self.cold += noted.sampled not in self._warm
            self._warm.add(noted.sampled)
            self.made += 1
            graph.run = noted
            self._memory += outcome
        return outcome

    def _live(self, work: DeviceStep, rows: int) -> int:
        """How many sessions sit in the first rows."""
        try:
            return int(work.rows.view(rows).live.sum())
        except CaptureError:
            self.unwatched = True
            return 0

    def returned(self, outcome: Outcome) -> None:
        """What the part has returned from a step."""
        made = {tensor.untyped_storage().data_ptr() for tensor in self._memory}
        self.shared = sum(tensor.untyped_storage().data_ptr() in made for tensor in outcome)

    @property
    def times_done(self) -> int:
        """How often the step was done to the sessions."""
        return len(self.replays) + sum(run.live > 0 for run in self.runs)

    def seen(self) -> GraphsSeen:
        graph = self.replays[-1].run if self.replays else None
        return GraphsSeen(
            outside=self.outside,
            captures=len(self.captures),
            replays=len(self.replays),
            rows=graph.rows if graph else 0,
            shared=self.shared,
            cold=self.cold,
            made=self.made,
            needless=sum(graph.run is not None and graph.run.sampled > self.sampled for graph in self.replays),
        )


class WatchedWork(DeviceStep):
    """The work, as the part gets it: calls of it are noted."""

    def __init__(self, work: DeviceStep, log: RunLog) -> None:
        self.work, self.log = work, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        return self.log.run(self.work, self, inputs, sampled)


def _noted(work: DeviceStep, inputs: DecodeInputs, sampled: bool, live: int, after_capture: bool) -> Run:
    rows = len(inputs.token_ids)
    own = work.rows.view(rows).inputs
    frozen = (name for name in TENSORS if getattr(inputs, name).data_ptr() != getattr(own, name).data_ptr())
    of_a_step, first = bool(inputs.sessions), next(frozen, "")
    return Run(rows, sampled, of_a_step, inputs.max_context_len, first, live, after_capture)


class _Outside(DispatchMode):
    """Counts operations that move data. Views, and memory that is only reserved, are no work for a device."""

    def __init__(self, log: RunLog) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.log.counting and func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        if self.log.counting and moves_data(func):
            self.log.outside += 1
        return func(*args, **kwargs)


def moves_data(func: Any) -> bool:
    """Whether an operation of the dispatcher writes anything: views do not, nor does memory that is only reserved."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace == "profiler" or name in NO_DATA:
        return False
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return func._schema.is_mutable or not is_view
