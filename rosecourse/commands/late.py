"""Modules that are imported late: importing torch takes seconds, which neither --help nor a bad flag should cost."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .ending import interrupts_leave


class Late:
    """A module that is imported when one of its names is first used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        with interrupts_leave():
            return getattr(import_module(self._module), name)


kernelspec = Late("jupyter_client.kernelspec")
benchmark = Late("rosecourse.commands.benchmark")
engines = Late("rosecourse.commands.engines")
tasks = Late("rosecourse.commands.tasks")
folding = Late("rosecourse.decode.folding")
ops = Late("rosecourse.decode.ops")
kernels = Late("rosecourse.kernels")
checking = Late("rosecourse.lab.checks.checking")
guard = Late("rosecourse.lab.exercises.guard")
part_file = Late("rosecourse.lab.exercises.part_file")
racing = Late("rosecourse.lab.exercises.racing")
workloads = Late("rosecourse.lessons.workloads")
floor = Late("rosecourse.measure.floor")
holding = Late("rosecourse.measure.holding")
provenance = Late("rosecourse.measure.provenance")
rivals = Late("rosecourse.measure.rivals")
stats = Late("rosecourse.measure.stats")
summary = Late("rosecourse.measure.summary")
whole_runs = Late("rosecourse.measure.whole_runs")
workload = Late("rosecourse.measure.workload")
load = Late("rosecourse.models.load")
plots = Late("rosecourse.pictures.plots")
assignments = Late("rosecourse.records.assignments")
measured = Late("rosecourse.records.measured")
recorder = Late("rosecourse.records.recorder")
record_session = Late("rosecourse.records.session")
results = Late("rosecourse.records.results")
step_recorder = Late("rosecourse.records.step_recorder")
session = Late("rosecourse.request.session")
torch = Late("torch")
tqdm = Late("tqdm")
