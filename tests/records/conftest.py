"""What the tests of the record command share."""

from types import SimpleNamespace

import pytest

from rosecourse.commands import engines
from rosecourse.measure import provenance
from rosecourse.records import recorder
from tests.support.record_command import CLEAN


@pytest.fixture
def source(monkeypatch, model):
    """A clean source, whatever the state of the tree that is tested; no time spent on memory and loading."""
    found = provenance.provenance()
    source = dict(CLEAN)
    for module in (provenance, engines, recorder):
        monkeypatch.setattr(module, "provenance", lambda: found | source)
    monkeypatch.setattr(recorder, "copy_bandwidth", lambda device: 1e10)
    load = engines.model_of

    def loaded(args):
        return load(args) if args.dtype or args.random_weights or args.device != "cpu" else model

    monkeypatch.setattr(engines, "model_of", loaded)
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
