"""Pictures of readers: names and labels that hide nothing, and each mark at its place."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from rosecourse.measure.delivery_simulation import Deliveries, Wake
from rosecourse.pictures.colours import AFTER
from rosecourse.pictures.reading import draw_shares, draw_trade, draw_turns, draw_wakes


def test_each_name_is_led_to_from_its_line_and_has_a_piece_of_it():
    shares = pd.DataFrame({"one": {1: 1.0, 8: 0.9}, "other": {1: 1.0, 8: 0.9}, "third": {1: 1.0, 8: 0.2}})
    styles = {name: {"color": colour, "linestyle": "--"} for name, colour in zip(shares, "rgb", strict=True)}
    ax = Figure().subplots()
    draw_shares(ax, shares, styles, "shares")
    lines, right = ax.lines[:3], ax.lines[3:]
    assert [line.get_ydata().tolist() for line in lines] == [[100, 90], [100, 90], [100, 20]]
    for name, line, text, leader, piece in zip(shares, lines, ax.texts, right[::2], right[1::2], strict=True):
        assert text.get_text().startswith(f"{name}: ")
        assert line.get_color() == leader.get_color() == piece.get_color()
        assert line.get_linestyle() == piece.get_linestyle() == "--"
        assert [leader.get_xdata()[0], leader.get_ydata()[0]] == [8, line.get_ydata()[-1]]
        assert set(piece.get_ydata()) == {leader.get_ydata()[-1], text.xy[1]}
        assert leader.get_xdata()[-1] == piece.get_xdata()[0] < piece.get_xdata()[-1] < text.xy[0]
    assert [text.xy[1] for text in ax.texts] == pytest.approx([90, 84, 20])  # those that end together stand apart


def test_wakes_are_cut_to_their_window():
    axes = Figure().subplots(2)
    run = SimpleNamespace(times=[SimpleNamespace(read=[0.9, 1.004, 1.2]), SimpleNamespace(read=[1.005])])
    draw_wakes(axes, run, [(0.9, 1.002), (1.006, 1.5)], [(1.002, 1.003)], (1.0, 10.0))
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes[0].patches]
    assert np.array(bars) == pytest.approx(np.array([(0, 2), (6, 10), (2, 3)]))
    assert [line.get_xdata().round(6).tolist() for line in axes[1].lines] == [[4], [5]]


def test_each_wake_shows_how_many_tokens_its_reader_finds():
    ax = Figure().subplots()
    draw_turns(ax, Deliveries(2, 3, 1.0, (Wake(0, 0, 1), Wake(1, 2, 3)), ()), "turns", AFTER)
    assert [(text.get_position(), text.get_text()) for text in ax.texts] == [((0, 0), "1"), ((2, 1), "3")]


def test_labels_of_the_trade_stand_apart_and_above_all_runs():
    delays, rates = [2.5, 20.0, 2.4, 2.45], [25e3, 40e3, 26e3, 30e3]
    paid = pd.DataFrame({"delay p50 (ms)": delays, "tokens/s": rates})
    paid["lowest"], paid["highest"] = paid["tokens/s"] * 0.9, paid["tokens/s"] * 1.3
    ax = Figure().subplots()
    draw_trade(ax, paid, ["each", "5k", "40k", "20k"], "trade")
    places = {text.get_text(): text.xy for text in ax.texts}
    assert list(places) == ["40k", "20k", "each", "5k"]  # in the order of their delays
    assert all(one[0] * 1.2 < other[0] for one, other in pairwise(places.values()))
    assert min(y for _, y in places.values()) > paid["highest"].max() / 1e3
    assert ax.get_xlim()[1] > places["5k"][0]
