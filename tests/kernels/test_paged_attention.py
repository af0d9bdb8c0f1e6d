"""Paged attention: the reference, the sparse one of the CPU and the Triton kernel against dense attention."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as triton_interpreter

from rosecourse import KVBlockManager
from rosecourse.kernels import SparseAttention, paged_attention, paged_attention_for, reference
from tests.support.oracles import attention

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def sparse(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """`SparseAttention` with the arguments of the others."""
    if q.dtype != torch.float32 or q.device.type != "cpu":
        pytest.skip("for a CPU in float32")
    attention = SparseAttention(SimpleNamespace(k_layers=[k_layer], v_layers=[v_layer]), q.shape[1])
    attention.plan(block_table[None], context_lens, max_context_len)
    return attention.run(0, q, k_new, v_new)


IMPLEMENTATIONS = {
    "reference": reference.paged_attention_decode,
    "sparse": sparse,
    "triton": paged_attention.paged_attention_decode,
}


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    """The interpreter lets integers wrap, as a GPU does, unless it is told to look."""
    if INTERPRETED:
        strict = dataclasses.replace(triton_interpreter.interpreter_builder.options, debug=True)
        monkeypatch.setattr(triton_interpreter.interpreter_builder, "options", strict)


def a_case(lens, H=2, D=8, block_size=4, dtype=torch.float32, seed=0, fused=True):
    """Inputs of a decode step, NaN in every slot that must not be read; and each session's dense K and V."""
    generator = torch.Generator().manual_seed(seed)
    B = len(lens)
    max_blocks = -(-max(lens) // block_size) + 1
    num_blocks = B * max_blocks + 2
    k_layer = torch.full((num_blocks, H, block_size, D), float("nan"))
    v_layer = k_layer.clone()
    order = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.full((B, max_blocks), order.pop(), dtype=torch.int32)  # padded with a block of NaN
    dense = []
    for b, length in enumerate(lens):
        kv = torch.randn(2, length, H, D, generator=generator)
        for p in range(length):
            if p % block_size == 0:
                table[b, p // block_size] = order.pop()
            k_layer[table[b, p // block_size], :, p % block_size] = kv[0, p]
            v_layer[table[b, p // block_size], :, p % block_size] = kv[1, p]
        dense.append(kv)
    if fused:  # views of one projection, as the model gives them
        q, k_new, v_new = torch.randn(B, 3, H, D, generator=generator).to(DEVICE, dtype).unbind(1)
    else:
        q, k_new, v_new = torch.randn(3, B, H, D, generator=generator).to(DEVICE, dtype).unbind(0)
    caches = k_layer.to(DEVICE, dtype), v_layer.to(DEVICE, dtype)
    context_lens = torch.tensor(lens, device=DEVICE)
    return (q, *caches, table.to(DEVICE), context_lens, max(lens), k_new, v_new), dense


def expected(args, dense):
    """Dense attention in float64 over each session's K and V and its new token, from the values as stored."""
    q, k_layer, _, _, _, _, k_new, v_new = (x.cpu() if isinstance(x, torch.Tensor) else x for x in args)
    rows = []
    for b, kv in enumerate(dense):
        kv = kv.to(k_layer.dtype)
        rows.append(attention(q[b], torch.cat([kv[0], k_new[b, None]]), torch.cat([kv[1], v_new[b, None]])))
    return torch.stack(rows)


def check(implementation, args, dense):
    out = IMPLEMENTATIONS[implementation](*args)
    assert out.dtype == args[0].dtype
    tolerance = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.cpu().double(), expected(args, dense), atol=tolerance, rtol=tolerance)


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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_pool_of_more_than_2_to_the_31_elements(implementation):
    """Its last blocks lie past what an int32 offset reaches. Memory that is not used is not touched."""
    (q, k, _, table, lens, longest, k_new, v_new), dense = a_case([9], H=2, D=32, block_size=64, dtype=torch.float16)
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


IN_ENGINES = [
    reference.ReferenceAttention,
    paged_attention.TritonAttention,
    *([SparseAttention] if INTERPRETED else []),
]


@pytest.mark.parametrize("implementation", IN_ENGINES)
def test_an_engine_plans_once_for_all_layers(implementation):
    (q, k, v, table, lens, longest, k_new, v_new), _ = a_case([5, 9, 2])
    shape = {"num_kv_heads": k.shape[1], "head_dim": k.shape[3], "block_size": k.shape[2], "num_blocks": k.shape[0]}
    kv = KVBlockManager(num_layers=2, dtype=k.dtype, device=DEVICE, **shape)
    moved = torch.randperm(k.shape[0], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    tables = torch.stack([table, torch.argsort(moved)[table.long()].int()])
    for layer, order in enumerate((torch.arange(k.shape[0], device=DEVICE), moved)):
        kv.k_layers[layer].copy_(k[order])
        kv.v_layers[layer].copy_(v[order])
    attention = implementation(kv)
    attention.plan(tables, lens, longest)
    for layer in range(2):
        expected = reference.paged_attention_decode(q, k, v, table, lens, longest, k_new, v_new)
        torch.testing.assert_close(attention.run(layer, q, k_new, v_new), expected, atol=1e-5, rtol=1e-5)


def test_the_device_decides():
    kv = KVBlockManager(
        num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, num_blocks=1, dtype=torch.float32, device=DEVICE
    )
    assert type(paged_attention_for(kv)) is (SparseAttention if INTERPRETED else paged_attention.TritonAttention)
    if INTERPRETED:
        kv.k_layers = tuple(k.bfloat16() for k in kv.k_layers)
        assert type(paged_attention_for(kv)) is reference.ReferenceAttention


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
