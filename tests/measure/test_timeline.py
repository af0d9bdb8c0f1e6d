"""Timelines of a decode step: how long the device is busy, the host's parts, and whole replayed steps."""

import pytest

from rosecourse import ConfigError
from rosecourse.measure.timeline import replayed_step
from rosecourse.records.steps import recorded_steps
from tests.support.timelines import APPEND, FORWARD, timeline_of

LAYER = [("attend", "attention", 0, 5), ("gemm", "matrix", 6, 3)]
ENDS = [("head", "matrix", 10, 20), ("_to_host_kernel", "other", 31, 1), ("embed", "other", 33, 2)]


def test_a_kernel_that_waits_for_the_one_before_it_counts_from_its_end():
    spans = [("a", 0, 10), ("b", 2, 14), ("c", 3, 12), ("d", 20, 25)]
    found = timeline_of([(name, "other", start, end - start) for name, start, end in spans], 22.0)
    assert found.kernels.own_us.tolist() == [10, 4, 0, 5]
    assert (found.busy_us, found.busy_share) == (16, 16 / 22)  # d ends after the step


def test_the_host_spends_its_time_in_parts_and_in_the_rest():
    found = timeline_of([], 9000.0, [(FORWARD, 100, 3000), ("roseinfer.other", 120, 5), (APPEND, 8000, 500)])
    assert [found.part_us(part) for part in ("forward", "kv_append", "plan", "rest")] == [3000, 500, 0, 5500]
    assert found.kernels.empty
    assert found.busy_us == 0


def window(*groups):
    """Kernels one group after the other, 40 µs each."""
    return timeline_of([(n, kind, 40 * at + start, us) for at, one in enumerate(groups) for n, kind, start, us in one])


def test_a_whole_step_is_put_together_from_a_window_of_replays():
    """The window has the end of a step, its border with the next one, and two layers of that."""
    border = [*LAYER, *ENDS]
    seen = window(LAYER, border, LAYER, LAYER, LAYER[:1])
    step = replayed_step(seen, layers=5)
    assert step.kernels.name.tolist() == ["embed", *["attend", "gemm"] * 5, "head", "_to_host_kernel"]
    assert step.kernels.start_us.tolist()[:3] == [0, 7, 13]
    assert step.step_us == 5 * 40  # from one embedding to the next
    assert (step.plain_us, step.device) == (seen.plain_us, seen.device)


@pytest.mark.parametrize(
    ("groups", "told"), [([LAYER, LAYER], "no border of two steps"), ([[*LAYER, *ENDS], LAYER], "no whole layer")]
)
def test_a_window_without_a_border_or_a_whole_layer_is_refused(groups, told):
    with pytest.raises(ConfigError, match=told):
        replayed_step(window(*groups), layers=2)


@pytest.mark.parametrize("number", ["067", "068", "069", "070", "071"])
def test_a_recorded_step_has_all_of_its_layers(number):
    step = replayed_step(recorded_steps("A").timeline(number), 12)
    assert (step.kernels.kind == "attention").sum() == 12
    assert 0 < step.busy_us <= step.step_us < 2 * step.plain_us
