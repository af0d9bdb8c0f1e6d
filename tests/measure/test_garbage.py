"""While something is measured, the garbage collector leaves old objects alone."""

import gc

import pytest

from rosecourse import EngineConfig, InferenceEngine, SamplingParams
from rosecourse.decode.garbage import collector_at_rest, old_objects_spared
from rosecourse.measure.workload import RUNNERS, Workload

PARAMS = SamplingParams(max_new_tokens=3, stop_on_eos=False)


@pytest.fixture(autouse=True)
def nothing_frozen():
    assert gc.get_freeze_count() == 0
    yield
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_a_run_spares_what_was_there_before_it(runner, small_model):
    seen = []

    def admission(waiting):
        seen.append(gc.get_freeze_count())
        return 0

    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=2, max_seq_len=16))
    old = len(gc.get_objects())
    runner(engine, Workload.of([(1, 2), (3,)], PARAMS, admission=admission))
    assert min(seen) > old / 2


def test_what_is_measured_may_fail():
    with pytest.raises(KeyError), old_objects_spared():
        {}[gc.get_freeze_count()]
    with pytest.raises(KeyError), collector_at_rest():
        {}[gc.isenabled()]
    assert gc.isenabled()


def test_what_somebody_else_has_frozen_or_switched_off_stays_so():
    gc.freeze()
    gc.disable()
    try:
        with old_objects_spared(), collector_at_rest():
            pass
        assert gc.get_freeze_count()
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
