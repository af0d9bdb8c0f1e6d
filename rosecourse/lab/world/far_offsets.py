"""A cache of more than 2^31 numbers, most of them never touched: a kernel that counts in 32 bits misses its slots.

Memory that nobody touches costs nothing on a CPU; on a GPU it has to be there, and without it the story is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...config import SamplingParams
from ...errors import ConfigError
from ...request.session import InferenceSession
from .causes import Cause
from .fault import Fault, PartIsWrong
from .layout import Layout
from .oracle import AnyAppendOracle
from .pool import Sizes
from .tiny_gpt2 import random_gpt2

SIZES = Sizes(1, 8, 128, 128, 2**14 + 8, 256, gates=(1, None))  # 2^17 numbers a block
BEFORE = 2**31  # numbers before the cache, where one lands whose offset has lost its upper bits
REASON = "block × H × block_size × D can be more than 32 bits hold: the block is cast to tl.int64 before the product"


def far_offsets(oracle: AnyAppendOracle) -> None:
    """Batches at one slot and at several, in blocks at both ends of the cache. The oracle's own pool is not used."""
    device = torch.device(oracle.sizes.device)
    kv = _far_cache(oracle.layout, device)
    if kv is None:
        return
    part = oracle.learner.build(random_gpt2(1, 1, 2, SIZES.max_seq_len, device.type), kv, SIZES.config())
    for lengths in ((5, 5, 5), (1, 7, 130)):
        oracle.steps += 1
        _step(oracle, kv, part, [_session(kv, length) for length in lengths])


def _far_cache(layout: Layout, device: torch.device) -> Any | None:
    """A cache of int8 numbers, K and V each behind `BEFORE` numbers; None where there is no memory for it."""
    try:
        kv: Any = layout.cache(
            num_layers=1,
            num_kv_heads=SIZES.heads,
            head_dim=SIZES.head_dim,
            block_size=SIZES.block_size,
            num_blocks=1,
            dtype=torch.int8,
            device=device,
        )
        shape = (1, SIZES.num_blocks, *kv.k_layers[0].shape[1:])
        size = torch.Size(shape).numel()
        keys, values = (torch.empty(BEFORE + size, dtype=torch.int8, device=device)[BEFORE:] for _ in "KV")
    except (RuntimeError, ConfigError):
        return None
    layout.put_caches(kv, keys.view(shape), values.view(shape))
    kv.num_blocks = SIZES.num_blocks
    (free,) = layout.free_lists(kv)
    free[:] = [1, *range(3, SIZES.num_blocks - 1), 0, SIZES.num_blocks - 1, 2]
    return kv


def _session(kv: Any, length: int) -> InferenceSession:
    session = InferenceSession([1] * length, SamplingParams())
    session.table, session.num_cached_tokens = kv.allocate(length), length
    return session


def _step(oracle: AnyAppendOracle, kv: Any, part: object, batch: Sequence[InferenceSession]) -> None:
    generator = torch.Generator().manual_seed(len(batch))
    shape = (2, len(batch), SIZES.heads, SIZES.head_dim)
    tokens = torch.randint(1, 100, shape, dtype=torch.int8, generator=generator).to(kv.device)
    ends = [oracle.layout.id_lists(kv, s.table)[0][-1] for s in batch]  # in layer 0 ids are indices
    at = [(block, s.num_cached_tokens % SIZES.block_size) for block, s in zip(ends, batch, strict=True)]
    for block, slot in at:
        for (cache,) in (kv.k_layers, kv.v_layers):
            cache[block, :, slot] = 0
    oracle.append_elsewhere(kv, part, batch, tokens[0].clone(), tokens[1].clone())
    missing = [
        (which, b)
        for b, (block, slot) in enumerate(at)
        for which, (cache,) in enumerate((kv.k_layers, kv.v_layers))
        if not torch.equal(cache[block, :, slot], tokens[which, b])
    ]
    if not missing:
        return
    (which, b), (block, slot) = missing[0], at[missing[0][1]]
    what = f"in a cache of more than 2^31 numbers the {'KV'[which]} of sessions[{b}] is not in its slot"
    where = f"slot:     {slot} of block {block}, which begins at number {block * kv.k_layers[0][0].numel():,}"
    if len(missing) == 2 * len(batch):  # near blocks' too
        raise PartIsWrong(Fault(what, (where,), cause=Cause.NOTHING_WRITTEN))
    raise PartIsWrong(Fault(what, (where,), REASON, cause=Cause.SIZE_LIMIT))
