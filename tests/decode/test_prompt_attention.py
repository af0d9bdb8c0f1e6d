"""Attention of prompts: one call for all lengths equals one for each group of equal lengths, and a plain sum."""

import random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams, lesson, random_model
from rosecourse.decode.prefill import AttentionByGroups, PromptTokens, VarlenAttention, prompt_attention_for
from tests.support.oracles import attention as attention_of_one
from tests.support.oracles import prompts_of

LAYERS, HEAD_DIM = 2, 8
CACHES = {"lists of each layer": lesson("035").after.cache, "one table": BEST.cache}
CPU = torch.device("cpu")
# (tokens that a prefix hit has found, tokens to compute) of each session
BATCHES = {
    "one token": [(0, 1)],
    "equal lengths": [(0, 5), (0, 5), (0, 5)],
    "mixed lengths": [(0, 3), (0, 17), (0, 1), (0, 16), (0, 4)],
    "a hit among others": [(0, 9), (16, 3), (0, 2)],
    "hits of different lengths": [(16, 3), (32, 1), (0, 7), (48, 20), (16, 16)],
    "hits of all but one token": [(32, 1), (16, 1), (48, 1)],
}


def reference(q, k, v, ends_q, ends_k, longest_q, longest_k, *, window_size):
    """`varlen_attn` in float64: sequence by sequence, token by token; the last row of each sees all of its K and V."""
    assert window_size == (-1, 0)
    assert q.shape[1] == k.shape[1] == v.shape[1], "heads are not shared here"
    assert (ends_q.dtype, ends_k.dtype) == (torch.int32, torch.int32)
    assert (ends_q.ndim, len(ends_q)) == (1, len(ends_k))
    lengths = list(zip(ends_q.diff().tolist(), ends_k.diff().tolist(), strict=True))
    assert (longest_q, longest_k) == tuple(map(max, zip(*lengths, strict=True)))
    assert (int(ends_q[0]), int(ends_q[-1]), int(ends_k[0]), int(ends_k[-1])) == (0, len(q), 0, len(k))
    rows = []
    for (new, total), start_q, start_k in zip(lengths, ends_q.tolist(), ends_k.tolist(), strict=False):
        for n in range(new):
            seen = slice(start_k, start_k + total - new + n + 1)
            rows.append(attention_of_one(q[start_q + n], k[seen], v[seen]))
    return torch.stack(rows).to(q.dtype)


class World:
    """A cache with K and V of sessions, of which the last tokens are new, in blocks that lie in no order."""

    def __init__(self, cache, lengths, *, block_size=4, kv_heads=2, heads=2, dtype=torch.float32, device=CPU):
        self.lengths, self.heads = lengths, heads
        self.kv = cache(
            num_layers=LAYERS,
            num_kv_heads=kv_heads,
            head_dim=HEAD_DIM if device == CPU else 64,
            block_size=block_size,
            num_blocks=sum(-(-sum(pair) // block_size) for pair in lengths) + 3,
            dtype=dtype,
            device=device,
        )
        self._fill(torch.Generator().manual_seed(len(lengths)))

    def _fill(self, generator):
        kv = self.kv
        for blocks in self._free_lists():
            random.Random(0).shuffle(blocks)
        for cache in (*kv.k_layers, *kv.v_layers):
            cache.fill_(torch.nan)  # a slot that nobody has written must not be read
        sessions = [
            SimpleNamespace(token_ids=[1] * (cached + new), num_cached_tokens=0, table=kv.allocate(cached + new))
            for cached, new in self.lengths
        ]
        all_tokens = PromptTokens(kv, sessions)
        of_session = [cached + new for cached, new in self.lengths]
        size = (LAYERS, sum(of_session), kv.k_layers[0].shape[1], kv.k_layers[0].shape[3])
        self.k, self.v = (torch.randn(size, generator=generator).to(kv.k_layers[0]) for _ in range(2))
        for layer in range(LAYERS):
            kv.write_tokens(layer, all_tokens.blocks[layer], all_tokens.slots, self.k[layer], self.v[layer])
        for session, (cached, _) in zip(sessions, self.lengths, strict=True):
            session.num_cached_tokens = cached
        self.tokens = PromptTokens(kv, sessions)
        self.starts = [sum(of_session[:n]) for n in range(len(of_session))]
        self.new = [start + cached + n for start, (cached, new) in self._each() for n in range(new)]  # rows of k and v
        self.q = torch.randn(LAYERS, len(self.new), self.heads, size[-1], generator=generator).to(self.k)

    def _free_lists(self):
        lists = self.kv._free_block_indices
        return lists if isinstance(lists[0], list) else [lists]

    def _each(self):
        return zip(self.starts, self.lengths, strict=True)

    def by(self, make, *settings):
        """The attention of all layers by a class: [L, N, H, D]."""
        attend = make(self.kv, self.heads // self.k.shape[2], *settings).plan(self.tokens)
        return torch.stack(
            [attend(n, self.q[n], self.k[n, self.new], self.v[n, self.new]) for n in range(LAYERS)],
        )

    def expected(self):
        """The same, token by token."""
        ends = [start + cached + n + 1 for start, (cached, new) in self._each() for n in range(new)]
        starts = [start for start, (_, new) in self._each() for _ in range(new)]
        return torch.stack(
            [
                torch.stack(
                    [
                        attention_of_one(q, self.k[layer, a:b], self.v[layer, a:b])
                        for q, a, b in zip(self.q[layer], starts, ends, strict=True)
                    ]
                )
                for layer in range(LAYERS)
            ]
        )


# -- on a CPU -----------------------------------------------------------------------------------------------------


HEADS, BLOCK_SIZES = [(2, 2), (6, 2), (4, 1)], [1, 4, 16]
PAIRWISE = [  # each pair of values of two axes
    (cache, batch, BLOCK_SIZES[(i + j) % 3], HEADS[(i + 2 * j) % 3])
    for i, batch in enumerate(BATCHES)
    for j, cache in enumerate(CACHES)
]


@pytest.mark.parametrize(("cache", "batch", "block_size", "heads"), PAIRWISE, ids=str)
def test_one_call_equals_one_for_each_group(cache, batch, block_size, heads):
    world = World(CACHES[cache], BATCHES[batch], block_size=block_size, heads=heads[0], kv_heads=heads[1])
    together = world.by(VarlenAttention, reference)
    torch.testing.assert_close(together, world.by(AttentionByGroups), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together.double(), world.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_one_call_a_layer_reads_the_cache_only_for_hits(lengths):
    """Without a hit K and V are those that the layer has just made."""
    calls = []

    def noted(q, k, v, *rest, **window):
        calls.append(k.data_ptr())
        return reference(q, k, v, *rest, **window)

    world = World(BEST.cache, lengths)
    made = [world.k[layer, world.new] for layer in range(LAYERS)]
    attend = VarlenAttention(world.kv, 1, noted).plan(world.tokens)
    for layer in range(LAYERS):
        attend(layer, world.q[layer], made[layer], made[layer])
    hit = any(cached for cached, _ in lengths)
    assert [pointer == k.data_ptr() for pointer, k in zip(calls, made, strict=True)] == [not hit] * LAYERS


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "kind"),
    [
        ("cpu", torch.float32, None, AttentionByGroups),
        ("cpu", torch.bfloat16, None, AttentionByGroups),
        ("cuda", torch.float32, (9, 0), AttentionByGroups),
        ("cuda", torch.float16, (7, 5), AttentionByGroups),
        ("cuda", torch.float16, (8, 0), VarlenAttention),
        ("cuda", torch.bfloat16, (9, 0), VarlenAttention),
    ],
)
def test_one_call_where_flash_attention_can_be(device, dtype, capability, kind):
    model = SimpleNamespace(dtype=dtype, shape=SimpleNamespace(num_heads=6, num_kv_heads=2))
    kv = SimpleNamespace(device=torch.device(device))
    with patch.object(torch.cuda, "get_device_capability", lambda _: capability):
        attention = prompt_attention_for(model, kv)
    assert (type(attention), attention.heads_per_kv_head) == (kind, 3)


# -- on a GPU -----------------------------------------------------------------------------------------------------

CUDA = torch.device("cuda")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_flash_attention_is_right(lengths, dtype, tolerance, heads):
    """Numbers are of size 1: the tolerance is four units of the last place, for the result and what is summed up."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("FlashAttention needs an Ampere GPU or a newer one")
    world = World(BEST.cache, lengths, block_size=16, heads=heads[0], kv_heads=heads[1], dtype=dtype, device=CUDA)
    together = world.by(VarlenAttention, varlen_attn)
    torch.testing.assert_close(together, world.by(AttentionByGroups), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(together.double(), world.expected(), rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@gpu
def test_a_prefill_in_half_precision_is_one_call_a_layer():
    """No call that plans for a shape: neither cuDNN's nor any other of `scaled_dot_product_attention`."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("FlashAttention needs an Ampere GPU or a newer one")
    engine = InferenceEngine(random_model("gpt2", dtype="float16", device="cuda"), EngineConfig(max_batch_size=8))
    engine.prompts.graphs.clear()  # a replay calls no Python
    with (
        patch.object(F, "scaled_dot_product_attention", side_effect=AssertionError("a plan for a shape")),
        patch.object(engine.prompts.attention, "varlen", wraps=varlen_attn) as varlen,
    ):
        for seed, lengths in enumerate(([3], [5, 5, 5], [9, 1, 70], [2, 64, 65, 33])):
            sessions = [engine.new_session(prompt, SamplingParams(2)) for prompt in prompts_of(lengths, 200, seed)]
            engine.take_tokens(sessions, engine.prefill(sessions))
            for session in sessions:
                engine.free(session)
    assert varlen.call_count == 4 * engine.model.shape.num_layers
