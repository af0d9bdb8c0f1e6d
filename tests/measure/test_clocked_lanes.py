"""Lanes from moments: a run that is noted as the simulation makes it gives the simulation's lanes."""

import pytest

from rosecourse.measure.clocked_lanes import NotedRun, some_steps
from rosecourse.measure.pipeline_simulation import PLAN, READ, RUN, WAIT, Lanes, Span, simulate

ZERO = 100.0  # seconds


def noted(lanes, steps_ahead):
    """The moments of a simulated run, in seconds: a call begins with a plan, and the last one with what is left."""

    def moments(what):
        spans = {span.step: span for span in (*lanes.host, *lanes.device) if span.what == what}
        return [(ZERO + span.start / 1e3, ZERO + span.end / 1e3) for _, span in sorted(spans.items())]

    plans, reads = moments(PLAN), moments(READ)
    waits = {span.step: span.start for span in lanes.host if span.what == WAIT}
    begins = [ZERO + waits[step] / 1e3 if step in waits else reads[step][0] for step in range(len(reads))]
    starts = [begin for begin, _ in plans] + [ZERO + lanes.end / 1e3]
    if steps_ahead:  # the last steps have calls of their own
        starts[-1:] = [reads[-2][1], ZERO + lanes.end / 1e3]
    waited = [(begin, read) for begin, (read, _) in zip(begins, reads, strict=True)]
    return NotedRun(starts, [end for _, end in plans], waited, moments(RUN), steps_ahead)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_moments_of_a_simulated_run_give_its_lanes(steps_ahead):
    expected = simulate(6, plan=1, read=2, device=5, steps_ahead=steps_ahead)
    found = noted(expected, steps_ahead).lanes
    for lane, other in ((found.host, expected.host), (found.device, expected.device)):
        lane = [span for span in lane if span.duration > 1e-6]
        assert [span[:2] for span in lane] == [span[:2] for span in other]
        assert [span[2:] for span in lane] == [pytest.approx(span[2:]) for span in other]
    assert found.step_time == pytest.approx(expected.step_time)
    assert found.typical(READ) == pytest.approx(2)


def test_some_steps_are_cut_at_both_ends():
    host = [Span(PLAN, 0, 0, 1), Span(READ, 0, 2, 4), Span(PLAN, 1, 4, 5), Span(READ, 1, 7, 9)]
    cut = some_steps(Lanes(tuple(host), (Span(RUN, 0, 1, 4.5), Span(RUN, 1, 6, 8), Span(RUN, 2, 8.5, 10))), 1, 1)
    assert cut.host == (Span(PLAN, 1, 0, 1), Span(READ, 1, 3, 5))
    assert cut.device == (Span(RUN, 0, 0, 0.5), Span(RUN, 1, 2, 4), Span(RUN, 2, 4.5, 5))
