"""The record command under test: sizes that take no time, and who ran when."""

from rosecourse import LESSONS
from rosecourse.measure import workload
from rosecourse.measure.workload import run_scheduler

SMALL = ["--device", "cpu", "--num-requests", "3", "--max-new-tokens", "4", "--max-batch-size", "2", "--rounds", "5"]
CLEAN = {"commit": "c0ffee" + "0" * 34, "dirty": False}
RUNGS = [rung.number for rung in LESSONS]


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rung_of(engine):
    """The number of the lesson after which an engine is."""
    parts = {name: type(getattr(engine.decode_step, name)) for name in ("block_tables", "kv_append")}
    return next(r.number for r in LESSONS if all(getattr(r.after, name) is part for name, part in parts.items()))


def spy(monkeypatch, change=lambda run, number: None):
    """Notes the rung of each run of the scheduler; `change(run, number)` may spoil it."""
    order = []

    def run(engine, workload):
        order.append(rung_of(engine))
        found = run_scheduler(engine, workload)
        change(found, len(order))
        return found

    monkeypatch.setitem(workload.RUNNERS, "benchmark_scheduler", run)
    return order
