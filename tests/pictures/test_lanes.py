"""Lanes and addresses: as PyTorch indexes the cache, and drawn where the same colour says so."""

import pytest
import torch

from rosecourse.pictures.colours import EMPTY, HEADS, OWNER_COLOURS
from rosecourse.pictures.lanes import lanes_to_addresses
from tests.support.diagram_reader import grids


@pytest.mark.parametrize(
    ("H", "D", "block_size", "block", "pos"), [(3, 4, 4, 1, 2), (1, 1, 1, 0, 0), (2, 4, 2, 5, 1), (5, 3, 8, 2, 7)]
)
def test_a_lane_and_the_element_that_it_writes_have_one_colour(H, D, block_size, block, pos):
    cache = torch.arange((block + 1) * H * block_size * D).view(block + 1, H, block_size, D)
    picture = lanes_to_addresses(H, D, block_size, block, pos, BLOCK_HD=32)
    lanes, slots, dims, *heads = (list(row.values())[1:] for rows in grids(picture) for row in rows)
    assert [cell.fill for cell in lanes] == [HEADS[hd // D % 3] if hd < H * D else EMPTY for hd in range(32)]
    for h, row in enumerate(heads):
        assert [int(cell.text) for cell in row] == cache[block, h].flatten().tolist()
        for slot, dim, cell in zip(slots, dims, row, strict=True):
            written = int(slot.text) == pos
            assert cell.fill == (lanes[h * D + int(dim.text)].fill if written else EMPTY)


def test_a_head_has_not_the_colour_of_a_request():
    assert not set(HEADS) & set(OWNER_COLOURS)
