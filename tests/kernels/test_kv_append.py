"""The kernels that append: each copies K and V to the bit, and changes nothing else; heads that do not fit."""

import pytest
import torch

from rosecourse import ConfigError
from rosecourse.kernels import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
from rosecourse.kernels.launch import Launch
from tests.kernels.attention_cases import DEVICE, INTERPRETED

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
KERNELS = ["indices", "one position", torch.int32, torch.int64]  # dtypes: those of the table that it is told by
SHAPES = [(1, 8, 1), (3, 12, 4), (4, 32, 64)]  # heads, numbers of a head, block size
GRID = [
    (kernel, dtype, SHAPES[(i + j) % 3], bool((i + j) % 2))
    for i, kernel in enumerate(KERNELS)
    for j, dtype in enumerate(BITS)
]


def any_bits(*shape, dtype, seed):
    """Numbers of every kind: NaN of all sorts, infinities, subnormal ones, both zeros."""
    limits, generator = torch.iinfo(BITS[dtype]), torch.Generator().manual_seed(seed)
    bits = torch.randint(limits.min, limits.max + 1, shape, dtype=BITS[dtype], generator=generator)
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), torch.finfo(dtype).smallest_normal / 2]
    bits.view(-1)[: len(special)] = torch.tensor(special, dtype=dtype).view(BITS[dtype])
    return bits.view(dtype).to(DEVICE)


@pytest.mark.parametrize(("kernel", "dtype", "shape", "fused"), GRID)
def test_slots_are_written_to_the_bit_and_nothing_else(kernel, dtype, shape, fused):
    """By a table: rows of a wider table, and positions that are a row of the persistent state."""
    heads, dim, block_size = shape
    B, logical, num_blocks = 5, 3, 17
    generator = torch.Generator().manual_seed(0)
    size = (B, 3, heads, dim) if fused else (3, B, heads, dim)
    _, key, value = any_bits(*size, dtype=dtype, seed=1).unbind(1 if fused else 0)
    caches = [any_bits(num_blocks, heads, block_size, dim, dtype=dtype, seed=seed) for seed in (2, 3)]
    expected = [cache.clone().view(BITS[dtype]) for cache in caches]
    table = torch.randperm(num_blocks, generator=generator)[: B * logical].view(B, logical)
    positions = torch.tensor([0, block_size - 1, block_size, 2 * block_size, 3 * block_size - 1])
    if kernel == "one position":
        positions.fill_(block_size + block_size // 2)
    blocks, slots = table[torch.arange(B), positions // block_size], positions % block_size
    order = torch.randperm(B, generator=generator)[:4] if kernel == "indices" else torch.arange(B)
    for cache, new in zip(expected, (key, value), strict=True):
        cache[blocks[order].to(DEVICE), :, slots[order].to(DEVICE)] = new.contiguous().view(BITS[dtype])[
            order.to(DEVICE)
        ]
    on_device = [x.to(DEVICE) for x in (order, blocks[order], slots[order])]
    if kernel == "indices":
        kv_append_triton(*caches, key, value, *on_device)
    elif kernel == "one position":
        kv_append_triton_full_batch(*caches, key, value, on_device[1], int(slots[0]))
    else:
        wide = torch.full((B, 7), num_blocks, dtype=kernel, device=DEVICE)  # a block that is not there
        wide[:, :logical] = table
        kv_append_by_table(*caches, key, value, wide, positions.to(DEVICE))
    assert all(torch.equal(cache.view(BITS[dtype]), right) for cache, right in zip(caches, expected, strict=True))


@pytest.mark.parametrize("kernel", ["indices", "one position"])
@pytest.mark.parametrize(
    ("key_heads", "value_heads", "name"), [(4, 2, "key_new"), (2, 4, "value_new"), (1, 2, "key_new")]
)
def test_heads_that_the_cache_does_not_have_are_refused(monkeypatch, kernel, key_heads, value_heads, name):
    monkeypatch.setattr(Launch, "__call__", None)
    caches = torch.zeros(2, 5, 2, 4, 8, device=DEVICE)
    key, value = (torch.ones(3, count, 8, device=DEVICE) for count in (key_heads, value_heads))
    numbers = torch.arange(3, device=DEVICE)
    append, where = {
        "indices": (kv_append_triton, [numbers] * 3),
        "one position": (kv_append_triton_full_batch, [numbers, 1]),
    }[kernel]
    with pytest.raises(ConfigError, match=f"^{name} has . heads of 8 numbers, the cache 2 heads of 8: give the same$"):
        append(*caches, key, value, *where)
