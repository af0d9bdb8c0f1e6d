"""Draws: without state, evenly spread, and unrelated from seed to seed and from position to position."""

import numpy as np
import pytest
import torch

from rosecourse.request.draws import WORD, draw, draws, key_of, mixed

MANY = 1 << 14
BINS = 64
SEEDS = (0, 1, 2, 12345, 2**32 - 1, 2**32, 2**63, 2**200 + 1)


def spread(values):
    """Pearson's chi-square over equal bins, in its standard deviations from the mean of an even spread."""
    counts = np.bincount((np.asarray(values) * BINS).astype(int), minlength=BINS)
    even = len(values) / BINS
    return abs(((counts - even) ** 2 / even).sum() - (BINS - 1)) / (2 * (BINS - 1)) ** 0.5


SERIES = {f"seed {seed}": lambda n, seed=seed: draw(seed, n) for seed in SEEDS}
SERIES |= {f"position {position}": lambda n, position=position: draw(n, position) for position in (0, 1, 127, 4096)}
SERIES |= {"a token later": lambda n: (draw(n, 7) + draw(n, 8)) % 1}


@pytest.mark.parametrize("series", SERIES.values(), ids=SERIES)
def test_draws_are_spread_evenly_and_unrelated(series):
    values = [series(n) for n in range(MANY)]
    assert 0.0 <= min(values) < max(values) < 1.0
    assert spread(values) < 5
    for distance in (1, 2, 16, 64):  # the correlation, in its standard deviations
        assert abs(np.corrcoef(values[distance:], values[:-distance])[0, 1]) * MANY**0.5 < 5


@pytest.mark.parametrize("bit", range(0, WORD, 5))
def test_each_bit_of_seed_and_position_changes_half(bit):
    for changed in (lambda n: draw(n ^ 1 << bit, n), lambda n: draw(n, n ^ 1 << bit)):
        flips = [(int(changed(n) * 2**WORD) ^ int(draw(n, n) * 2**WORD)).bit_count() for n in range(500)]
        assert 15 < np.mean(flips) < 17


def test_seeds_have_keys_of_their_own_to_the_last_bit():
    """fmix32 of MurmurHash3: values that its author's reference code gives."""
    assert [mixed(word) for word in (0, 1, 0xFFFFFFFF)] == [0, 0x514E28B7, 0x81F16F39]
    assert len({key_of(seed) for seed in range(1 << 16)}) == 1 << 16
    assert len({key_of(seed) for seed in (1, 1 + 2**32, 1 + 2**64, 1 + 2**200)}) == 4


def test_a_tensor_of_draws_is_the_draws_of_its_rows():
    """For positions past 32 bits too, and products that overflow 64 bits."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(0, 2**40, (2000,), generator=generator).tolist()
    positions += [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40]
    seeds = torch.randint(0, 2**62, (2007,), generator=generator).tolist()
    for each in (seeds, *([seed] * len(positions) for seed in SEEDS)):
        found = draws(torch.tensor([key_of(seed) for seed in each]), torch.tensor(positions))
        assert found.dtype == torch.float64
        assert found.tolist() == [draw(*one) for one in zip(each, positions, strict=True)]
