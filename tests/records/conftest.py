"""What the tests of the record command share."""

from types import SimpleNamespace

import pytest

from rosecourse.commands.work import record
from rosecourse.records import recorder
from tests.support.record_command import CLEAN


@pytest.fixture
def source(monkeypatch, model):
    """A clean source, whatever the state of the tree that is tested; no time spent on memory and loading."""
    found = record.provenance()
    source = dict(CLEAN)
    for module in (record, recorder):
        monkeypatch.setattr(module, "provenance", lambda: found | source)
    monkeypatch.setattr(recorder, "copy_bandwidth", lambda device: 1e10)
    load = record.model_of

    def loaded(args):
        return load(args) if args.dtype or args.random_weights or args.device != "cpu" else model

    monkeypatch.setattr(record, "model_of", loaded)
    return source


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by ten seconds with each run."""
    now = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))

    def move(run, number):
        run.total_seconds = 10.0
        run.stats.preemptions = number
        now[0] += 10

    return move
