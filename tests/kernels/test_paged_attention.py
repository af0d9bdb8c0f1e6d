"""Paged attention: the reference, the sparse one of the CPU and the Triton kernel against dense attention."""

from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from rosecourse.kernels import SparseAttention, paged_attention, paged_attention_for, reference
from rosecourse.lessons.l035_blocks import KVBlockManager
from tests.support.attention_cases import (
    DEVICE,
    IMPLEMENTATIONS,
    INTERPRETED,
    TOLERANCE,
    a_case,
    check,
    let_overflow_raise,
)


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    let_overflow_raise(monkeypatch)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 64])
def test_mixed_lengths_around_block_boundaries(implementation, block_size):
    lens = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size, 2 * block_size + 1})
    check(implementation, *a_case(lens, block_size=block_size))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("H", "D"), [(1, 16), (3, 32), (2, 64), (2, 12), (1, 80)])
def test_dtypes_and_head_shapes(implementation, dtype, H, D):
    check(implementation, *a_case([5, 17, 1], H=H, D=D, block_size=8, dtype=dtype))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_long_contexts_take_several_tiles(implementation):
    check(implementation, *a_case([63, 64, 65, 130, 200], H=1, block_size=16))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_inputs_need_not_be_fused(implementation):
    check(implementation, *a_case([3, 9], fused=False))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_scores_of_any_size_stay_finite(implementation):
    (q, *rest), dense = a_case([7, 30], H=1)
    check(implementation, (q * 300, *rest), dense)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_session_with_nan_does_not_touch_its_neighbours(implementation):
    args, _ = a_case([6, 7, 9])
    clean = IMPLEMENTATIONS[implementation](*args)
    args[0][1] = float("nan")
    out = IMPLEMENTATIONS[implementation](*args)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_order_of_blocks_in_the_pool_does_not_matter(implementation):
    one, _ = a_case([13, 22], seed=3)
    shuffled = torch.randperm(one[1].shape[0], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    other = list(one)
    other[1], other[2] = one[1][shuffled], one[2][shuffled]
    other[3] = torch.argsort(shuffled)[one[3].long()].int()
    decode = IMPLEMENTATIONS[implementation]
    assert torch.equal(decode(*one), decode(*other))


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_pool_of_more_than_2_to_the_31_elements(implementation, group):
    """Its last blocks lie past what an int32 offset reaches. Memory that is not used is not touched."""
    shape = {"H": 2, "D": 32, "block_size": 64, "group": group}
    (q, k, _, table, lens, longest, k_new, v_new), dense = a_case([9], **shape, dtype=torch.float16)
    num_blocks = 2**31 // (2 * 64 * 32) + k.shape[0]
    pool = torch.empty((num_blocks, *k.shape[1:]), dtype=torch.float16, device=DEVICE)
    first = num_blocks - k.shape[0]
    pool[first:] = k
    check(implementation, (q, pool, pool, table + first, lens, longest, k_new, v_new), [dense[0][[0, 0]]])


@triton.jit
def _doubling_kernel(ptr, value):
    tl.store(ptr, value + value)


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU integers wrap silently: the interpreter is where we look")
def test_the_interpreter_does_raise_on_overflow():
    """Guards the fixture above: without it the sum would wrap and the test of large pools could miss it."""
    with pytest.raises(Exception, match="overflow"):
        _doubling_kernel[(1,)](torch.zeros(1, dtype=torch.int32), 2**31 - 1)


IN_ENGINES = {
    "reference": lambda kv, num_heads: reference.ReferenceAttention(kv),
    "triton": lambda kv, num_heads: paged_attention.TritonAttention(kv),
    **({"sparse": SparseAttention} if INTERPRETED else {}),
}


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("implementation", IN_ENGINES)
def test_an_engine_plans_once_for_all_layers(implementation, group):
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([5, 9, 2], group=group)
    shape = {"num_kv_heads": k.shape[1], "head_dim": k.shape[3], "block_size": k.shape[2], "num_blocks": k.shape[0]}
    kv = KVBlockManager(num_layers=2, dtype=k.dtype, device=DEVICE, **shape)
    moved = torch.randperm(k.shape[0], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    tables = torch.stack([table, torch.argsort(moved)[table.long()].int()])
    for layer, order in enumerate((torch.arange(k.shape[0], device=DEVICE), moved)):
        kv.k_layers[layer].copy_(k[order])
        kv.v_layers[layer].copy_(v[order])
    attention = IN_ENGINES[implementation](kv, q.shape[1])
    attention.plan(tables, lens, longest)
    for layer in range(2):
        expected = reference.paged_attention_decode(q, k, v, table, lens, longest, k_new, v_new)
        torch.testing.assert_close(attention.run(layer, q, k_new, v_new), expected, atol=1e-5, rtol=1e-5)


def test_the_device_decides():
    kv = KVBlockManager(
        num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, num_blocks=1, dtype=torch.float32, device=DEVICE
    )
    assert type(paged_attention_for(kv, 1)) is (SparseAttention if INTERPRETED else paged_attention.TritonAttention)
    if INTERPRETED:
        kv.k_layers = tuple(k.bfloat16() for k in kv.k_layers)
        assert type(paged_attention_for(kv, 1)) is reference.ReferenceAttention


@pytest.mark.skipif(not INTERPRETED, reason="for a CPU")
def test_scores_of_one_layer_or_step_do_not_reach_the_next():
    """The sparse product multiplies what lies in its output by 0: a score that is infinite or NaN would stay."""
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([5, 9, 2])
    attention = SparseAttention(SimpleNamespace(k_layers=[k, k], v_layers=[v, v]), q.shape[1])
    attention.plan(torch.stack([table, table]), lens, longest)
    first, second = (attention.run(layer, q, k_new, v_new) for layer in range(2))
    assert torch.equal(first, second)
    attention.run(0, q * float("nan"), k_new, v_new)
    attention.plan(torch.stack([table, table]), lens, longest)
    assert torch.equal(attention.run(1, q, k_new, v_new), first)
