"""Attention of prompts whose K and V are in the cache: in torch and in Triton, against float64."""

from types import SimpleNamespace

import pytest
import torch

from rosecourse.kernels import prompt_attention, reference
from tests.kernels.harness import DEVICE, MARKS, ROUNDING, pairwise
from tests.support.oracles import attention

pytestmark = MARKS

KINDS = {"reference": reference.PromptAttention, "triton": prompt_attention.TritonPromptAttention}
# Of each session, tokens in the cache and tokens to compute; some that decode, some tiles and more, one at their edges.
LENGTHS = {
    "one": [(0, 1)],
    "decode": [(5, 1), (130, 1), (63, 1)],
    "chunks": [(0, 70), (61, 3), (64, 64), (7, 33)],
    "mixed": [(80, 1), (3, 1), (100, 29), (0, 9)],
}


def attended(kind, lengths, dtype, H, group, D, block_size, empty=0):
    """What a kind makes of random numbers, in a cache of NaN, and the same in float64. empty: sequences of no rows."""
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(sum(new for _, new in lengths), H * group, D, generator=draw).to(dtype)
    blocks = -(-max(cached + new for cached, new in lengths) // block_size)
    order = torch.randperm(len(lengths) * blocks + 1, generator=draw)
    caches = torch.full((2, len(order), H, block_size, D), torch.nan, dtype=dtype)
    table = order[:-1].view(len(lengths), blocks)
    expected, last_rows, positions = [], [], []
    for row, (cached, new) in zip(table, lengths, strict=True):
        k, v = torch.randn(2, cached + new, H, D, generator=draw).to(dtype)
        for p in range(cached + new):
            caches[0][row[p // block_size], :, p % block_size] = k[p]
            caches[1][row[p // block_size], :, p % block_size] = v[p]
        for position in range(cached, cached + new):
            expected.append(attention(q[len(positions)], k[: position + 1], v[: position + 1]))
            positions.append(position)
        last_rows.append(len(positions) - 1)
    table = torch.cat([table, order[-1].expand(empty, blocks)])
    tokens = SimpleNamespace(
        last_rows=torch.tensor(last_rows + empty * last_rows[-1:], device=DEVICE),
        positions=torch.tensor(positions, device=DEVICE),
        tables=table[None].to(DEVICE),
    )
    kv = SimpleNamespace(k_layers=[caches[0].to(DEVICE)], v_layers=[caches[1].to(DEVICE)])
    return KINDS[kind](kv, group).plan(tokens)(0, q.to(DEVICE)).cpu(), torch.stack(expected)


@pairwise(
    kind=[*KINDS],
    lengths=[*LENGTHS],
    dtype=[*ROUNDING],
    heads=[(2, 1), (1, 3), (2, 4)],
    D=[16, 20, 64],
    block_size=[1, 4, 16],
    empty=[0, 3],
)
def test_a_row_sees_its_session_up_to_itself(kind, lengths, dtype, heads, D, block_size, empty):
    out, expected = attended(kind, LENGTHS[lengths], dtype, *heads, D, block_size, empty)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=5 * (2 * ROUNDING[dtype] + 2e-6), rtol=0)


@pytest.mark.parametrize("most", [1, 3, 64])
def test_tiles_are_all_rows_each_once(most):
    """As many tiles as shapes allow; those that are left over have no rows."""
    last_rows, positions = (
        torch.tensor([2, 3, 70, 70]),
        torch.cat([torch.arange(3), torch.tensor([9]), torch.arange(67)]),
    )
    tiles = prompt_attention.tiles_of(last_rows, positions, most)
    assert len(tiles) == 71 // most + 4
    rows = [(r, s) for first, n, _, s in tiles.tolist() for r in range(first, first + n)]
    assert sorted(rows) == [(r, 0 if r < 3 else 1 if r == 3 else 2) for r in range(71)]
    assert all(n <= most and (not n or position == positions[first]) for first, n, position, _ in tiles.tolist())
