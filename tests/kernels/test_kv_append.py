"""The kernels that append: each copies K and V to the bit, and changes nothing else."""

import torch

from rosecourse.kernels import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
from tests.kernels.harness import BITS, DEVICE, MARKS, any_bits, pairwise, same_bits

pytestmark = MARKS
B, LOGICAL, NUM_BLOCKS = 5, 3, 17


@pairwise(
    kernel=["indices", "one position", torch.int32, torch.int64],  # dtypes: those of the table that it is told by
    dtype=[*BITS],
    shape=[(1, 8, 1), (3, 12, 4), (4, 32, 64)],  # heads, numbers of a head, block size
    fused=[False, True],
)
def test_slots_are_written_to_the_bit_and_nothing_else(kernel, dtype, shape, fused):
    """By a table: rows of a wider table, and positions that are a row of the persistent state."""
    heads, dim, block_size = shape
    generator = torch.Generator().manual_seed(0)
    size = (B, 3, heads, dim) if fused else (3, B, heads, dim)
    _, *new = any_bits(*size, dtype=dtype, seed=1).unbind(1 if fused else 0)
    caches = [any_bits(NUM_BLOCKS, heads, block_size, dim, dtype=dtype, seed=seed) for seed in (2, 3)]
    expected = [cache.clone() for cache in caches]
    table = torch.randperm(NUM_BLOCKS, generator=generator)[: B * LOGICAL].view(B, LOGICAL)
    positions = torch.tensor([0, block_size - 1, block_size, 2 * block_size, 3 * block_size - 1])
    if kernel == "one position":
        positions.fill_(block_size + block_size // 2)
    order = torch.randperm(B, generator=generator)[:4] if kernel == "indices" else torch.arange(B)
    blocks, slots = table[order, positions[order] // block_size], positions[order] % block_size
    order, blocks, slots = (x.to(DEVICE) for x in (order, blocks, slots))
    for cache, each in zip(expected, new, strict=True):
        bits = each.contiguous().view(BITS[dtype])
        cache.view(BITS[dtype])[blocks, :, slots] = bits[order]
    if kernel == "indices":
        kv_append_triton(*caches, *new, order, blocks, slots)
    elif kernel == "one position":
        kv_append_triton_full_batch(*caches, *new, blocks, int(slots[0]))
    else:
        wide = torch.full((B, 7), NUM_BLOCKS, dtype=kernel, device=DEVICE)  # a block that is not there
        wide[:, :LOGICAL] = table
        kv_append_by_table(*caches, *new, wide, positions.to(DEVICE))
    assert all(map(same_bits, caches, expected))
