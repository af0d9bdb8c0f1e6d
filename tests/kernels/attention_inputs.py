"""Paged attention: its implementations under one signature, inputs for them, and attention in float64 to compare with.

Memory is NaN wherever nothing has been written.
"""

from types import SimpleNamespace

import torch

from rosecourse.kernels import SparseAttention, appending_attention, paged_attention, reference
from rosecourse.kernels.sparse_attention import AppendedSparseAttention
from tests.kernels.harness import DEVICE, INTERPRETED, ROUNDING, same_bits
from tests.support.oracles import attention

BLOCK_SIZE = 4
NAMES = ["q", "k", "v", "table", "lens", "longest", "k_new", "v_new"]
# Scores, weights and sums are float32 in every implementation, whatever the cache holds. Scores of normal numbers are
# small, and wrong by a few of the 2**-24 that each of D products may cost; exp and a sum of T weights add T.
ARITHMETIC = 2e-6


def sparse(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """`SparseAttention` with the arguments of the others."""
    attention = SparseAttention(SimpleNamespace(k_layers=[k_layer], v_layers=[v_layer]), q.shape[1])
    attention.plan(block_table[None], context_lens, max_context_len)
    return attention.run(0, q, k_new, v_new)


def appended(q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
    """`AppendedSparseAttention` likewise, over copies of the caches to which K and V of the new token are written."""
    block_size = k_layer.shape[2]
    k_layer, v_layer = k_layer.clone(), v_layer.clone()
    blocks = block_table.gather(1, (context_lens // block_size)[:, None].long())[:, 0]
    k_layer[blocks, :, context_lens % block_size] = k_new
    v_layer[blocks, :, context_lens % block_size] = v_new
    attention = AppendedSparseAttention(SimpleNamespace(k_layers=[k_layer], v_layers=[v_layer]), q.shape[1])
    attention.plan(block_table[None], context_lens, max_context_len)
    return attention.run(0, q, k_new, v_new)


def in_parts(longest):
    """Contexts that may be so long are shared by several programs, where these are few."""

    def attend(q, k_layer, v_layer, block_table, context_lens, _, k_new, v_new):
        return appending_attention.attend_and_append(
            q, k_layer, v_layer, block_table, context_lens, longest, k_new, v_new
        )

    return attend


APPENDING = {"appending": appending_attention.attend_and_append, "in 2 parts": in_parts(64), "in 8": in_parts(1024)}
IMPLEMENTATIONS = {
    "reference": reference.paged_attention_decode,
    **({"sparse": sparse, "appended": appended} if INTERPRETED else {}),
    "triton": paged_attention.paged_attention_decode,
    **APPENDING,
}


def is_for(name, dtype):
    return name not in ("sparse", "appended") or dtype == torch.float32


class Case:
    """Sessions with so many cached tokens and a new one: q [B, H * group, D], and of each session k, v [T, H, D]."""

    def __init__(self, lengths, dtype=torch.float32, H=2, D=16, block_size=BLOCK_SIZE, group=1, fused=False, width=0):
        self.lengths, self.dtype, self.block_size, self.fused = lengths, dtype, block_size, fused
        self.generator, self.width = torch.Generator().manual_seed(0), width
        self.q = self.normal(len(lengths), H * group, D)
        self.k, self.v = ([self.normal(length + 1, H, D) for length in lengths] for _ in range(2))

    def normal(self, *size):
        return torch.randn(*size, generator=self.generator)

    def args(self):
        """What an implementation takes: blocks in any order, and one of NaN behind that of the new token.

        Rows of the table stand farther apart than they are long.
        """
        k_new, v_new = (torch.stack([rows[-1] for rows in each]) for each in (self.k, self.v))
        new = [x.to(DEVICE, self.dtype) for x in (self.q, k_new, v_new)]
        if self.fused:  # views of one projection, as a model gives them
            new = torch.cat(new, dim=1).split([x.shape[1] for x in new], dim=1)
        B, max_blocks = len(self.lengths), max(self.lengths) // self.block_size + 2
        num_blocks = B * max_blocks + 2
        caches = torch.full((2, num_blocks, k_new.shape[1], self.block_size, k_new.shape[2]), float("nan"))
        order = torch.randperm(num_blocks, generator=self.generator)
        table = order[-1].int().repeat(B, max(max_blocks, self.width) + 1)
        for b, length in enumerate(self.lengths):
            blocks = length // self.block_size + 1
            table[b, :blocks] = order[b * max_blocks : b * max_blocks + blocks]
            for p in range(length):
                place = table[b, p // self.block_size], slice(None), p % self.block_size
                caches[0][place], caches[1][place] = self.k[b][p], self.v[b][p]
        lens = torch.tensor(self.lengths, device=DEVICE)
        return new[0], *caches.to(DEVICE, self.dtype), table.to(DEVICE)[:, :-1], lens, max(self.lengths), new[1], new[2]

    def expected(self):
        """In float64, from the numbers as the dtype holds them."""
        stored = [[x.to(self.dtype) for x in rows] for rows in (self.q, self.k, self.v)]
        return torch.stack([attention(q, k, v) for q, k, v in zip(*stored, strict=True)])

    def bound(self, name):
        """How far the result may be from `expected`."""
        largest = max(float(v.to(self.dtype).abs().max()) for v in self.v)
        # Below the normal numbers rounding is absolute: half of the smallest number, for the result in its dtype and
        # for each of the T products in float32.
        below = smallest(self.dtype) / 2 + (max(self.lengths) + 1) * smallest(torch.float32) / 2
        roundings = 2 if name in APPENDING else 1  # weights are rounded to the dtype, for the tensor cores
        return largest * (roundings * ROUNDING[self.dtype] + ARITHMETIC) + below

    def check(self, name, args=None):
        """The result is right, and the new K and V are in their slots if the kernel appends; nothing else is."""
        q, k, v, table, lens, longest, *new = args or self.args()
        caches = [k.clone(), v.clone()]
        for cache, each in zip(caches, new, strict=True):
            for b, length in enumerate(self.lengths if name in APPENDING else []):
                cache[table[b, length // self.block_size], :, length % self.block_size] = each[b]
        self.attend(name, (q, k, v, table, lens, longest, *new))
        assert same_bits(k, caches[0])
        assert same_bits(v, caches[1])

    def attend(self, name, args):
        out = IMPLEMENTATIONS[name](*args)
        assert out.dtype == self.dtype
        torch.testing.assert_close(out.cpu().double(), self.expected(), atol=self.bound(name), rtol=0)


def smallest(dtype):
    """The smallest number above zero, a subnormal one."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
