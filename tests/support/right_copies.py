"""Parts of lesson 065, which copy blocks, right and in several styles."""

import torch

from rosecourse.kv.buffers import index_tensor


class Indexed:
    """Advanced indexing, as a base of wrong ones: each changes one method."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, copies):
        if copies:
            self.copy(*self.indices(copies))

    def indices(self, copies):
        return index_tensor(list(zip(*copies, strict=True)), self.kv.device)

    def copy(self, old, new):
        for cache in (self.kv.keys, self.kv.values):
            self.write(cache, old, new)

    def write(self, cache, old, new):
        cache[:, new] = cache[:, old]


class GathersAndScatters(Indexed):
    def write(self, cache, old, new):
        flat = cache.view(len(cache), cache.shape[1], -1)
        shape = (len(cache), -1, flat.shape[2])
        rows = flat.gather(1, old.view(1, -1, 1).expand(shape))
        flat.scatter_(1, new.view(1, -1, 1).expand(shape), rows)


class ThroughABuffer:
    """Builds its indices from two lists, and reads into one buffer, which is written before it is used again."""

    def __init__(self, model, kv, config):
        self.pools, self.device = (kv.keys, kv.values), kv.device

    def __call__(self, copies):
        if len(copies) == 0:
            return
        new, old = (torch.tensor([pair[n] for pair in copies], device=self.device) for n in (1, 0))
        layers, _, *block = self.pools[0].shape
        room = self.pools[0].new_empty((layers, len(copies), *block))
        for pool in self.pools:
            torch.index_select(pool, 1, old, out=room)
            pool.index_copy_(1, new, room)


class OneIsACase(Indexed):
    """A single copy is made by slices, without an index tensor."""

    def __call__(self, copies):
        if len(copies) != 1:
            return super().__call__(copies)
        ((old, new),) = copies
        for cache in (self.kv.keys, self.kv.values):
            cache[:, new].copy_(cache[:, old])
        return None


class InOrder(Indexed):
    """Sorts the copies by their destinations, in a list of its own."""

    def indices(self, copies):
        return super().indices(sorted(copies, key=lambda pair: pair.destination))


class AllButTheLastSlot(Indexed):
    """A block that is copied has a free slot: the last one is never in use."""

    def write(self, cache, old, new):
        cache[:, new, :, :-1] = cache[:, old, :, :-1]


RIGHT = (
    Indexed,
    GathersAndScatters,
    ThroughABuffer,
    OneIsACase,
    InOrder,
    AllButTheLastSlot,
)
