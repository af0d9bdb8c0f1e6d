"""The picture of a start: bars from the admission to the first token."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from rosecourse.pictures.colours import AFTER
from rosecourse.pictures.reading import draw_start, prefills_of, start_of, typical_start


def run_of(*requests):
    times = [SimpleNamespace(submitted=s, admitted=a, tokens=[one, two, 9.0]) for s, a, one, two in requests]
    return SimpleNamespace(times=times)


RUN = run_of((1.0, 1.1, 1.4, 2.0), (1.0, 1.5, 1.8, 2.1), (1.05, 1.6, 1.8, 2.2))


def test_moments_are_ms_from_the_first_submit():
    assert start_of(RUN) == pytest.approx(np.array([[100, 400, 1000], [500, 800, 1100], [600, 800, 1200]]))


def test_the_typical_start_is_of_the_run_in_the_middle():
    runs = [run_of((0, 0.1, 0.2, second)) for second in (0.9, 0.3, 0.5)]
    assert typical_start(runs)[0, 2] == pytest.approx(500)


def test_requests_that_have_their_first_tokens_together_are_one_prefill():
    (one, first), (two, second) = prefills_of(start_of(RUN))
    assert (one, two) == (1, 2)
    assert (first, second) == pytest.approx((300, 300))


def test_a_bar_for_each_request_in_the_order_of_first_tokens():
    ax = Figure().subplots()
    draw_start(ax, start_of(RUN)[::-1], "a start", AFTER)
    (bars,) = (np.array(lines.get_segments()) for lines in ax.collections)
    assert bars[:, :, 0] == pytest.approx(np.array([[100, 400], [500, 800], [600, 800]]))
    assert bars[:, 0, 1].tolist() == [0, 1, 2]
    assert ax.lines[0].get_xdata() == pytest.approx([1000, 1100, 1200])
