"""Parts of lesson 065, which copy blocks: right ones in several styles, and right ones that miss the idea."""

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


class Selected(Indexed):
    """index_select and index_copy_."""

    def write(self, cache, old, new):
        cache.index_copy_(1, new, cache.index_select(1, old))


class LayerByLayer(Indexed):
    """A loop over layers, which is as long for one copy as for all."""

    def copy(self, old, new):
        for layer in (*self.kv.k_layers, *self.kv.v_layers):
            layer[new] = layer[old]


class HeadByHead(Indexed):
    def write(self, cache, old, new):
        for layer in cache:
            for head in range(layer.shape[1]):
                layer[new, head] = layer[old, head]


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
    Selected,
    LayerByLayer,
    HeadByHead,
    GathersAndScatters,
    ThroughABuffer,
    OneIsACase,
    InOrder,
    AllButTheLastSlot,
)


# -- right ones that cost more than the idea leaves --------------------------------------------------------------------


class OneByOne(Indexed):
    def __call__(self, copies):
        for old, new in copies:
            self.copy(old, new)


class OneByOneInNumPy(Indexed):
    """Torch sees no operation."""

    def __call__(self, copies):
        bits = torch.int32 if self.kv.keys.element_size() == 4 else torch.int16
        for cache in (self.kv.keys, self.kv.values):
            numbers = cache.view(bits).numpy()
            for old, new in copies:
                numbers[:, new] = numbers[:, old]


class TwoAtOnce(Indexed):
    def __call__(self, copies):
        for n in range(0, len(copies), 2):
            super().__call__(copies[n : n + 2])


class FamilyByFamily(Indexed):
    """The copies of one source together: right in number for the samples of one prompt alone."""

    def __call__(self, copies):
        for source in {pair.source for pair in copies}:
            super().__call__([pair for pair in copies if pair.source == source])


class IndexByIndex(Indexed):
    """Copies together, and builds the indices number by number."""

    def indices(self, copies):
        pairs = torch.empty(2, len(copies), dtype=torch.int64)
        for n, (old, new) in enumerate(copies):
            pairs[0, n], pairs[1, n] = old, new
        return pairs


class NeverIdle(Indexed):
    """Makes tensors where there is nothing to copy."""

    def __call__(self, copies):
        pairs = torch.tensor(copies, dtype=torch.int64).reshape(-1, 2)
        self.copy(pairs[:, 0], pairs[:, 1])


WITHOUT_THE_IDEA = {
    OneByOne: "the torch operations grow with the copies",
    OneByOneInNumPy: "stores of K and V",
    TwoAtOnce: "the torch operations grow with the copies",
    FamilyByFamily: "the torch operations grow with the copies",
    IndexByIndex: "the torch operations grow with the copies",
    NeverIdle: "torch operations in a step of 16 sessions inside their blocks",
}
