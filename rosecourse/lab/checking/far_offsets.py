"""A cache of more than 2^31 numbers, most of them never touched: a kernel that counts in 32 bits misses its slots.

Memory that nobody touches costs nothing on a CPU; on a GPU it has to be there, and without it nothing is tried.
"""

from typing import Any

import torch

from ...config import SamplingParams
from ...errors import ConfigError
from ...request.session import InferenceSession
from . import Wrong
from .apart import STEP
from .layout import layout_of
from .pool import Sizes
from .pool_stories import PoolStories

SIZES = Sizes(8, 1, 128, 128, 2**14 + 8, 256, "int8", any_batch=1)  # 2^17 numbers a block
BEFORE = 2**31  # numbers before the cache, where one lands whose offset has lost its upper bits


def far_offsets(stories: PoolStories, part: type) -> None:
    """Batches at one slot and at several, in blocks at both ends of such a cache. Raises `Wrong`."""
    kv = _far_cache(stories)
    if kv is not None:
        made = part(SIZES.model(), kv, SIZES.config())
        for lengths in ((5, 5, 5), (1, 7, 130)):
            _step(kv, made, lengths)


def _far_cache(stories: PoolStories) -> Any | None:
    """A cache of int8 numbers, K and V each behind `BEFORE` numbers; None where there is no memory for it."""
    device = torch.device(stories.device)
    sizes = {"num_layers": 1, "num_kv_heads": SIZES.heads, "head_dim": SIZES.head_dim, "block_size": SIZES.block_size}
    try:
        kv: Any = stories.cache(**sizes, num_blocks=1, dtype=torch.int8, device=device)
        shape = (1, SIZES.num_blocks, *kv.k_layers[0].shape[1:])
        length = BEFORE + torch.Size(shape).numel()
        keys, values = (torch.empty(length, dtype=torch.int8, device=device)[BEFORE:].view(shape) for _ in "KV")
    except (RuntimeError, ConfigError):
        return None
    layout = layout_of(kv)
    layout.put_caches(kv, keys, values)
    kv.num_blocks = SIZES.num_blocks
    (free,) = layout.free_lists(kv)
    free[:] = [1, *range(3, SIZES.num_blocks - 1), 0, SIZES.num_blocks - 1, 2]
    return kv


def _step(kv: Any, made: Any, lengths: tuple[int, ...]) -> None:
    STEP.begin()
    batch, at = [], []
    for length in lengths:
        session = InferenceSession([1] * length, SamplingParams())
        session.table, session.num_cached_tokens = kv.allocate(length), length
        batch.append(session)
        at.append((layout_of(kv).id_lists(kv, session.table)[0][-1], length % SIZES.block_size))
    count = 2 * len(batch) * SIZES.heads * SIZES.head_dim
    tokens = (torch.arange(count) % 97 + 1).to(torch.int8).view(2, len(batch), SIZES.heads, -1).to(kv.device)
    caches = kv.k_layers[0], kv.v_layers[0]
    for cache in caches:
        for block, slot in at:
            cache[block, :, slot] = 0
    made(batch, [tokens[0].clone()], [tokens[1].clone()])
    for which, cache, new in zip("KV", caches, tokens, strict=True):
        for (block, slot), token in zip(at, new, strict=True):
            if not torch.equal(cache[block, :, slot], token):
                raise Wrong(
                    f"in a cache of more than 2^31 numbers the new {which} is not in slot {slot} of block {block},\n"
                    f"which begins at number {block * cache[0].numel():,}: 32 bits do not hold block * heads * "
                    "block_size * head_dim"
                )
