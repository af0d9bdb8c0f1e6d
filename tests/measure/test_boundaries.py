"""The steps around a block boundary, from gaps that are made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from rosecourse import ConfigError
from rosecourse.measure.boundaries import boundary_steps, spikes
from rosecourse.measure.compare import Comparison, Conditions
from rosecourse.measure.samples import Samples
from tests.support.recordings import run_of

# Blocks of 8 tokens and a prompt of 3: the K and V of step 5 go to position 8, those of step 6 to position 9.
CONDITIONS = Conditions(2, 402, 3, 8, 3, "tiny", "float32", "a CPU", "2.11")


def run_with(boundary_ms, next_ms, noise_at=None):
    """Gaps of 1 ms, but for two kinds of steps and one gap of 50 ms."""
    positions = np.arange(200) + 3
    gaps = np.where(positions % 8 == 0, boundary_ms, np.where(positions % 8 == 1, next_ms, 1.0))
    if noise_at is not None:
        gaps[noise_at] = 50.0
    tokens = [1.0, *(1.0 + np.cumsum(gaps) / 1e3)]
    return run_of([tokens] * 2)


def comparison(before, after):
    return Comparison(Samples("before", before), Samples("after", after), CONDITIONS)


def test_each_kind_of_step_by_its_median_and_its_share_of_the_slowest():
    found = comparison([run_with(2.0, 1.0)] * 3, [run_with(1.5, 4.0)] * 3)
    table = boundary_steps(found)
    assert list(table.index) == ["a block begins", "the step after", "all others"]
    assert list(table["steps"]) == [25, 25, 150]
    assert list(table["before (ms)"]) == pytest.approx([2.0, 1.0, 1.0])
    assert list(table["after (ms)"]) == pytest.approx([1.5, 4.0, 1.0])
    assert list(table["slowest hundredth, before"]) == [1.0, 0.0, 0.0]
    assert list(table["slowest hundredth, after"]) == [0.0, 1.0, 0.0]


def test_a_stall_of_one_run_is_among_the_slowest_and_not_in_the_median():
    quiet, noisy = run_with(1.0, 1.0), run_with(1.0, 1.0, noise_at=30)  # position 33, the step after a boundary
    table = boundary_steps(comparison([quiet] * 3, [quiet, noisy, quiet]))
    assert table.loc["the step after", "after (ms)"] == pytest.approx(1.0)
    assert table.loc["the step after", "slowest hundredth, after"] >= 1 / 6
    assert table["slowest hundredth, after"].sum() == pytest.approx(1.0)


def test_the_first_lesson_has_one_side():
    table = boundary_steps(comparison([], [run_with(2.0, 1.0)] * 3))
    assert list(table.columns) == ["steps", "after (ms)", "slowest hundredth, after"]


def test_positions_have_to_be_known_and_blocks_to_have_an_inside():
    found = comparison([run_with(2.0, 1.0)], [run_with(2.0, 1.0)])
    with pytest.raises(ConfigError, match="length of the prompt is not known"):
        boundary_steps(replace(found, conditions=replace(CONDITIONS, prompt_tokens=None)))
    with pytest.raises(ConfigError, match="a block of 2 tokens"):
        boundary_steps(replace(found, conditions=replace(CONDITIONS, block_size=2)))


def test_a_spike_is_told_by_what_the_host_does_in_its_gap():
    """One step behind, what a launch takes longer shows in the gap before its step's; a full list in its own."""
    tokens = np.arange(200) + 4  # after each gap
    full = [n for n in (4, 8, 16, 24, 32, 40, 52, 64, 76, 92, 108, 128, 148, 172, 200) if n % 8]
    gaps = 1.0 + 0.5 * (tokens % 8 == 0) + 0.2 * np.isin(tokens, full)
    run = run_of([[1.0, *(1.0 + np.cumsum(gaps) / 1e3)]] * 2)
    quiet = run_of([[1.0, *(1.0 + np.arange(1, 201) / 1e3)]] * 2)
    table = spikes(comparison([run] * 3, [quiet] * 3))
    assert list(table.index) == ["a block begins", "lists grow", "all others"]
    assert list(table["before (ms)"]) == pytest.approx([0.5, 0.2, 0.0])
    assert list(table["after (ms)"]) == pytest.approx([0.0, 0.0, 0.0])
    assert table["gaps"].sum() <= 200
    assert table.loc["lists grow", "gaps"] == len(full)


def test_spikes_need_the_length_of_the_prompt():
    found = comparison([run_with(2.0, 1.0)], [run_with(2.0, 1.0)])
    with pytest.raises(ConfigError, match="length of the prompt is not known"):
        spikes(replace(found, conditions=replace(CONDITIONS, prompt_tokens=None)))
