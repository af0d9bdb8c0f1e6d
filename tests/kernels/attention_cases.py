"""Paged attention: its implementations under one signature, inputs for them, and dense attention to compare with."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import triton.runtime.interpreter as triton_interpreter

from rosecourse.kernels import SparseAttention, appending_attention, paged_attention, reference
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
    "appending": appending_attention.attend_and_append,
}


def let_overflow_raise(monkeypatch):
    """The interpreter lets integers wrap, as a GPU does, unless it is told to look."""
    if INTERPRETED:
        strict = dataclasses.replace(triton_interpreter.interpreter_builder.options, debug=True)
        monkeypatch.setattr(triton_interpreter.interpreter_builder, "options", strict)


def a_case(lens, H=2, D=8, block_size=4, dtype=torch.float32, seed=0, fused=True, group=1):
    """Inputs of a decode step of random numbers, as `paged` gives them; and each session's dense K and V [2, T, H, D].

    H: K and V heads; group: query heads for each of them.
    """
    generator = torch.Generator().manual_seed(seed)
    dense = [torch.randn(2, length, H, D, generator=generator) for length in lens]
    heads = [H * group, H, H]  # of q, K and V
    if fused:  # views of one projection, as a model gives them
        new = torch.randn(len(lens), sum(heads), D, generator=generator).to(DEVICE, dtype).split(heads, dim=1)
    else:
        new = [torch.randn(len(lens), n, D, generator=generator).to(DEVICE, dtype) for n in heads]
    return paged(*new, dense, block_size, generator), dense


def paged(q, k_new, v_new, dense, block_size, generator):
    """What an implementation takes: blocks in any order, NaN in every slot that must not be read."""
    B, lens = len(dense), [kv.shape[1] for kv in dense]
    max_blocks = -(-max(lens) // block_size) + 1
    num_blocks = B * max_blocks + 2
    caches = torch.full((2, num_blocks, k_new.shape[1], block_size, k_new.shape[2]), float("nan"))
    order = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.full((B, max_blocks), order.pop(), dtype=torch.int32)  # padded with a block of NaN
    for b, kv in enumerate(dense):
        for p in range(lens[b]):
            if p % block_size == 0:
                table[b, p // block_size] = order.pop()
            caches[:, table[b, p // block_size], :, p % block_size] = kv[:, p]
    context_lens = torch.tensor(lens, device=DEVICE)
    return q, *caches.to(DEVICE, q.dtype), table.to(DEVICE), context_lens, max(lens), k_new, v_new


def with_room(args):
    """The same with a block of its own for the next slot of every session: what is appended needs it."""
    _, k_layer, _, table, lens, *_ = args
    num_blocks, _, block_size, _ = k_layer.shape
    used = {block for b, length in enumerate(lens) for block in table[b, : -(-length // block_size)].tolist()}
    free = [block for block in range(num_blocks) if block not in used and block != table[0, -1]]
    for b, length in enumerate(lens.tolist()):
        if length % block_size == 0:
            table[b, length // block_size] = free.pop()
    return args


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
