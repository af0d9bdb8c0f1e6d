"""Pictures of readers: each line and mark has a name, and stands at its place."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from rosecourse.measure.delivery_simulation import Deliveries, Wake
from rosecourse.pictures.colours import AFTER
from rosecourse.pictures.reading import draw_shares, draw_trade, draw_turns, draw_wakes
from tests.support.drawn import bars_drawn


def test_the_legend_names_each_line_with_its_last_share():
    shares = pd.DataFrame({"one": {1: 1.0, 8: 0.2}, "other": {1: 1.0, 8: 0.9}})
    styles = {name: {"color": colour, "linestyle": "--"} for name, colour in zip(shares, "rg", strict=True)}
    ax = Figure(layout="constrained").subplots()
    draw_shares(ax, shares, styles, "shares")
    assert [(line.get_color(), line.get_ydata().tolist()) for line in ax.lines] == [("g", [100, 90]), ("r", [100, 20])]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["other: 90%", "one: 20%"]
    assert ax.get_legend().get_title().get_text() == "with 8 readers"


def test_wakes_are_cut_to_their_window():
    axes = Figure().subplots(2)
    run = SimpleNamespace(times=[SimpleNamespace(read=[0.9, 1.004, 1.2]), SimpleNamespace(read=[1.005])])
    draw_wakes(axes, run, [(0.9, 1.002), (1.006, 1.5)], [(1.002, 1.003)], (1.0, 10.0))
    bars = [bar[1:3] for bar in bars_drawn(axes[0])]
    assert np.array(bars) == pytest.approx(np.array([(0, 2), (6, 4), (2, 1)]))
    assert [line.get_xdata().round(6).tolist() for line in axes[1].lines] == [[4], [5]]


def test_each_wake_shows_how_many_tokens_its_reader_finds():
    ax = Figure().subplots()
    draw_turns(ax, Deliveries(2, 3, 1.0, (Wake(0, 0, 1), Wake(1, 2, 3)), ()), "turns", AFTER)
    assert [(text.get_position(), text.get_text()) for text in ax.texts] == [((0, 0), "1"), ((2, 1), "3")]


def test_each_way_of_the_trade_has_its_rate_its_delay_and_its_spread():
    delays, rates = [2.5, 20.0, 2.4], [25e3, 40e3, 26e3]
    paid = pd.DataFrame({"delay p50 (ms)": delays, "tokens/s": rates})
    paid["lowest"], paid["highest"] = paid["tokens/s"] * 0.9, paid["tokens/s"] * 1.3
    ax = Figure(layout="constrained").subplots()
    draw_trade(ax, paid, ["each", "5k", "40k"], "trade")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        *("each: 25.0k tokens/s, 2.5 ms", "5k: 40.0k tokens/s, 20 ms", "40k: 26.0k tokens/s, 2.4 ms")
    ]
    spreads = [bars.get_segments()[0][:, 1].tolist() for bars in ax.collections]
    assert spreads == [pytest.approx([low, high]) for low, high in ((22.5, 32.5), (36, 52), (23.4, 33.8))]
    assert len({line.get_marker() for line in ax.lines}) == 3
    assert ax.get_ylim()[1] > 52
