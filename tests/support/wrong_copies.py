"""Parts of lesson 065, which copy blocks: wrong ones, with what they are refused for."""

import torch

from rosecourse.kv.buffers import index_tensor
from tests.support.right_copies import Indexed


class KeysAlone(Indexed):
    def copy(self, old, new):
        self.write(self.kv.keys, old, new)


class ValuesAlone(Indexed):
    def copy(self, old, new):
        self.write(self.kv.values, old, new)


class FirstLayerAlone(Indexed):
    def write(self, cache, old, new):
        cache[0, new] = cache[0, old]


class LayersPastTheFirst(Indexed):
    def write(self, cache, old, new):
        cache[1:, new] = cache[1:, old]


class FirstHeadAlone(Indexed):
    def write(self, cache, old, new):
        cache[:, new, 0] = cache[:, old, 0]


class OneSlotTooFew(Indexed):
    def write(self, cache, old, new):
        cache[:, new, :, :-2] = cache[:, old, :, :-2]


class BehindTheFirstSlot(Indexed):
    def write(self, cache, old, new):
        cache[:, new, :, 1:] = cache[:, old, :, 1:]


class OldOverNew(Indexed):
    def copy(self, old, new):
        super().copy(new, old)


class Exchanges(Indexed):
    """Both blocks get what the other one held."""

    def write(self, cache, old, new):
        cache[:, torch.cat([old, new])] = cache[:, torch.cat([new, old])]


class Moves(Indexed):
    """Clears the source behind the copy."""

    def write(self, cache, old, new):
        super().write(cache, old, new)
        cache[:, old] = 0


class RowsMixed(Indexed):
    def indices(self, copies):
        old, new = super().indices(copies)
        return old.flip(0), new


class SortedApart(Indexed):
    """Sorts sources and destinations, each for itself."""

    def indices(self, copies):
        return super().indices(copies).sort(dim=1).values


class ZippedWrongly(Indexed):
    """Takes the flat list of all numbers for sources, then destinations."""

    def indices(self, copies):
        flat = index_tensor([block for pair in copies for block in pair], self.kv.device)
        return flat[: len(copies)], flat[len(copies) :]


class LastMissing(Indexed):
    def indices(self, copies):
        return super().indices(copies)[:, : max(1, len(copies) - 1)]


class FirstMissing(Indexed):
    def indices(self, copies):
        return super().indices(copies)[:, len(copies) > 1 :]


class NoMoreThanEight(Indexed):
    def indices(self, copies):
        return super().indices(copies)[:, :8]


class OfEachSourceOne(Indexed):
    def indices(self, copies):
        return super().indices([(old, new) for old, new in dict(copies).items()])


class NeighbourOfTheSource(Indexed):
    def indices(self, copies):
        old, new = super().indices(copies)
        return (old + 1) % self.kv.num_blocks, new


class NotOneAlone(Indexed):
    def __call__(self, copies):
        if len(copies) > 1:
            super().__call__(copies)


class OneTooMany(Indexed):
    """And the block behind the last destination."""

    def indices(self, copies):
        old, new = super().indices(copies)
        return torch.cat([old, old[-1:]]), torch.cat([new, (new[-1:] + 1) % self.kv.num_blocks])


class WholeRange(Indexed):
    """Takes the destinations for a range of neighbours."""

    def write(self, cache, old, new):
        first = min(int(new.min()), cache.shape[1] - len(new))
        cache[:, first : first + len(new)] = cache[:, old]


class Rounded(Indexed):
    def write(self, cache, old, new):
        cache[:, new] = cache[:, old].half().to(cache.dtype)


class Adds(Indexed):
    def write(self, cache, old, new):
        cache[:, new] += cache[:, old]


class SlotsShifted(Indexed):
    def write(self, cache, old, new):
        cache[:, new] = cache[:, old].roll(1, dims=3)


class LayersShifted(Indexed):
    def write(self, cache, old, new):
        cache[:, new] = cache[:, old].roll(1, dims=0)


class OneBufferForBoth(Indexed):
    """V is read into the buffer of K before K has been written."""

    def copy(self, old, new):
        room = self.kv.keys.index_select(1, old)
        torch.index_select(self.kv.values, 1, old, out=room)
        self.kv.keys[:, new] = room
        self.kv.values[:, new] = room


class IntoACopy(Indexed):
    """Indexing by a tensor gives a copy, and `copy_` writes into that."""

    def write(self, cache, old, new):
        cache[:, new].copy_(cache[:, old])


class AnotherPool(Indexed):
    """Puts another tensor into the place of the keys, of which the layers are no views."""

    def copy(self, old, new):
        self.kv.keys = self.kv.keys.index_copy(1, new, self.kv.keys[:, old])
        self.kv.values = self.kv.values.index_copy(1, new, self.kv.values[:, old])


class EmptiesTheList(Indexed):
    def __call__(self, copies):
        super().__call__(copies)
        copies.clear()


class SortsTheList(Indexed):
    def __call__(self, copies):
        copies.sort(key=lambda pair: -pair.destination)
        super().__call__(copies)


class WantsACopy(Indexed):
    """Cannot take apart an empty list."""

    def __call__(self, copies):
        old, new = zip(*copies, strict=True)
        self.copy(list(old), list(new))


class LeavesTheSource(Indexed):
    """Lowers the owners of the source, which `place` has done."""

    def __call__(self, copies):
        super().__call__(copies)
        for source, _ in copies:
            self.kv.info(source).owners -= 1


class KeepsTheList(Indexed):
    """Writes into a list that stays, and forgets to cut it off."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.pairs = []

    def __call__(self, copies):
        self.pairs[: len(copies)] = copies
        super().__call__(self.pairs)


WRONG = (
    KeysAlone,
    ValuesAlone,
    FirstLayerAlone,
    LayersPastTheFirst,
    FirstHeadAlone,
    OneSlotTooFew,
    BehindTheFirstSlot,
    OldOverNew,
    Exchanges,
    Moves,
    RowsMixed,
    SortedApart,
    ZippedWrongly,
    LastMissing,
    FirstMissing,
    NoMoreThanEight,
    OfEachSourceOne,
    OneTooMany,
    WholeRange,
    NeighbourOfTheSource,
    NotOneAlone,
    Rounded,
    Adds,
    SlotsShifted,
    LayersShifted,
    OneBufferForBoth,
    IntoACopy,
    AnotherPool,
    EmptiesTheList,
    SortsTheList,
    WantsACopy,
    LeavesTheSource,
    KeepsTheList,
)
