"""Which tiles a product gets: they fit into the device's shared memory, and there is a counter for each in parts."""

import itertools

import pytest

from rosecourse.kernels.fused import COUNTERS
from rosecourse.kernels.tiles import LEAST, MOST_ROWS, SCRATCH, TUNED, VOCABULARY, Tiles, fitting, tiles_for

LIMITS = {"H200": 232448, "consumer": 101376, "T4": 65536}
ROWS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, MOST_ROWS]
SHAPES = [*TUNED[1], (768, 50257), (1, 1), (33, 70), (4096, 12288), (16384, 4096), (1024, 1)]


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_they_fit_and_can_be_computed(limit, itemsize):
    for rows, (inputs, outputs) in itertools.product(ROWS, SHAPES):
        tiles = tiles_for(rows, inputs, outputs, itemsize, limit)
        assert tiles is not None
        assert tiles.bytes_for(itemsize) + SCRATCH <= limit
        for size in (tiles.BM, tiles.BN, tiles.BK):
            assert size >= LEAST
            assert size & (size - 1) == 0
        assert 2 * max(rows, LEAST) > tiles.BM
        in_parts = -(-rows // tiles.BM) * -(-outputs // tiles.BN) if tiles.splits > 1 else 0
        assert in_parts <= COUNTERS


def test_the_tuned_ones_are_those_of_the_rows_and_the_shape():
    for rows, height, least in ((1, 16, 1), (32, 32, 16), (63, 64, 33), (65, 64, 65)):
        assert tiles_for(rows, 3072, 768, 2, LIMITS["H200"]) == Tiles(height, *TUNED[least][3072, 768])
    assert tiles_for(256, 768, 50257, 2, LIMITS["H200"]) == Tiles(128, *TUNED[65][768, VOCABULARY])
    assert tiles_for(64, 3072, 768, 4, LIMITS["H200"]) != tiles_for(64, 3072, 768, 2, LIMITS["H200"])
    assert all(named.keys() == TUNED[1].keys() for named in TUNED.values())


@pytest.mark.parametrize(
    ("limit", "smaller"),
    [
        (131072, (64, 64, 64, 1, 8, 4)),
        (131071, (64, 64, 64, 1, 7, 4)),
        (20000, (64, 64, 32, 1, 2, 4)),
        (10000, (32, 32, 32, 1, 2, 4)),
        (4096, (16, 16, 32, 1, 2, 4)),
        (4095, None),
    ],
)
def test_what_is_too_large_gets_smaller(limit, smaller):
    assert fitting(Tiles(64, 64, 64, 1, 8, 4), 2, limit) == (smaller and Tiles(*smaller))
