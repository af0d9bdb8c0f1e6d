"""What must hold after a step of a part: block lists, descriptions of blocks, every number in memory, owner counts."""

from typing import Any

import torch
from torch import Tensor, equal  # as it is now, whatever a part puts in its place

from ...errors import BlockError
from . import Wrong, must
from .pool import Lists, Live, Pool

SHOWN = 6  # blocks of a picture


class Before:
    """A pool as it was before a step, against which the step is judged."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.memory = pool, pool.memory.clone()
        self.lists: dict[str, Lists] = {live.name: pool.lists(live) for live in pool.live}
        self.owners = {block: info.owners for block, info in pool.layout.in_use(pool.kv).items()}
        self.attributes = dict(vars(pool.kv))

    def look(self, batch: list[Live], stopped: bool) -> None:
        """Raise `Wrong` unless all holds. batch: the sessions that have one token more; stopped: for want of blocks."""
        self._look_at_attributes()
        for live in self.pool.live:
            self._look_at_session(live)
            for layer, ids in enumerate(self.pool.lists(live)):
                self._look_at_list(live, layer, ids, live in batch)
        self._look_at_memory(batch, stopped)
        self._look_at_owners()

    def _look_at_attributes(self) -> None:
        kv, changes = self.pool.kv, self.pool.layout.changes
        names = {*vars(kv), *self.attributes} - changes
        for name in sorted(names):
            if vars(kv).get(name) is not self.attributes.get(name):
                raise Wrong(f"the part has replaced `{name}` of the cache")

    def _look_at_session(self, live: Live) -> None:
        session = live.session
        tokens = getattr(session.table, "num_tokens", live.length)
        if session.num_cached_tokens != live.length or len(session.token_ids) != len(session.prompt_ids):
            raise Wrong(f"session {live.name} was changed by the part: only its blocks are to change")
        must(f"num_tokens of the table of session {live.name}", live.length, tokens)

    def _look_at_list(self, live: Live, layer: int, ids: list[int], in_batch: bool) -> None:
        pool, size = self.pool, self.pool.sizes.block_size
        at, shown = f"layer {layer}: session {live.name}", pool.indices(ids)
        blocks = pool.blocks_for(live.length)
        if len(ids) != blocks and not (live.placed and len(ids) == pool.blocks_for(live.length + 1)):
            raise Wrong(f"{at} has {live.length} tokens: {blocks} block(s); its list shows {shown}")
        old = self.lists.get(live.name, [ids] * (layer + 1))[layer]
        inside = live.length - 1 < len(old) * size
        may_leave_last = in_batch and inside and self.owners.get(old[-1], 1) > 1
        kept = old[:-1] if may_leave_last else old
        if ids[: len(kept)] != kept:
            raise Wrong(f"{at} showed the blocks {pool.indices(old)} before the step, and shows {shown} now")
        for n, block in enumerate(ids):
            self._look_at_block(live, layer, block, n * size, min(size, live.length - n * size))

    def _look_at_block(self, live: Live, layer: int, block: int, start: int, length: int) -> None:
        """The description that the caches of the first lessons keep of a block."""
        info = self.pool.layout.info_in_use(self.pool.kv, block)
        if hasattr(info, "start"):
            at = f"layer {layer}, block {info.block_index} of session {live.name}: start and length"
            must(at, (start, length), (info.start, info.length))

    def _look_at_memory(self, batch: list[Live], stopped: bool) -> None:
        expected = self._expected(batch, stopped)
        bits = torch.int16 if expected.element_size() == 2 else torch.int32
        found = self.pool.memory
        if not equal(found.view(bits), expected.view(bits)):
            differs = (found.view(bits) != expected.view(bits)) & ~(found.isnan() & expected.isnan())
            if differs.any():  # a NaN may become another one
                self._tell_difference(expected, differs)

    def _expected(self, batch: list[Live], stopped: bool) -> Tensor:
        """What was there, which was right, with the last block of each session of the batch as its table says."""
        pool, expected = self.pool, self.memory.clone()
        shown = {i for live in pool.live for ids in pool.lists(live) for i in ids}
        free_to_write = shown - {i for lists in self.lists.values() for ids in lists for i in ids}
        if stopped:  # what it had taken is free again
            free_to_write |= {*range(pool.sizes.layers * pool.sizes.num_blocks)} - {*pool.layout.in_use(pool.kv)}
        caches = pool.caches_in(expected)
        for layer, index in (divmod(i, pool.sizes.num_blocks) for i in free_to_write):
            caches[:, layer, index] = pool.caches[:, layer, index]  # behind its tokens a new block may hold anything
        pool.write(expected, [(live, self._first_new(live)) for live in batch])
        return expected

    def _first_new(self, live: Live) -> int:
        """The first position of a session that may lie elsewhere than before the step."""
        known, now = self.lists[live.name], self.pool.lists(live)
        is_as_before = all(was and is_now[: len(was)] == was for was, is_now in zip(known, now, strict=True))
        last = live.length - 1
        return last if is_as_before else last // self.pool.sizes.block_size * self.pool.sizes.block_size

    def _tell_difference(self, expected: Tensor, differs: Tensor) -> None:
        pool = self.pool
        places = pool.caches_in(differs).nonzero()
        if not len(places):
            raise Wrong("the part wrote into memory before the cache or behind it")
        which, layer, block, _, slot, _ = places[0].tolist()
        at = (which, layer, block, slice(None), slot)
        found, want, was = (pool.caches_in(m)[at] for m in (pool.memory, expected, self.memory))
        name = pool.tokens.name
        same = equal(found.nan_to_num(-5), was.nan_to_num(-5))
        fact = (
            f"layer {layer}, block {block}, slot {slot}: {'KV'[which]} must be {_told(name(want, which, layer))}; "
            f"found: {'unchanged, ' if same else ''}{_told(name(found, which, layer))}"
        )
        raise Wrong("\n".join([fact, *self._elsewhere(want, at)]))

    def _elsewhere(self, want: Tensor, at: tuple[Any, ...]) -> list[str]:
        """Where the right numbers went, if they are new in another slot."""
        pool = self.pool
        if want.isnan().any():
            return []
        now, before = (pool.caches_in(m).transpose(3, 4) for m in (pool.memory, self.memory))  # [2, L, N, S, H, D]
        hits = (now == want).flatten(4).all(4) & ~(before == want).flatten(4).all(4)
        for which, layer, block, slot in hits.nonzero().tolist():
            if (which, layer, block, slot) != (*at[:3], at[4]):
                kind = "" if which == at[0] else f" of {'KV'[which]}"
                return [f"the right numbers lie in layer {layer}, block {block}, slot {slot}{kind}"]
        return []

    def _look_at_owners(self) -> None:
        try:
            self.pool.layout.audit(self.pool.kv, [live.session.table for live in self.pool.live])
        except BlockError as error:
            raise Wrong(f"the owner counts are wrong: {error}") from None

    def picture(self) -> list[str]:
        """The blocks that the step has changed or that sessions show, before and after it, a line each."""
        pool = self.pool
        old, new = pool.caches_in(self.memory), pool.caches
        differ = ((old != new) & ~(old.isnan() & new.isnan())).any(0).flatten(2).any(2)  # [L, num_blocks]
        lists = [ids for live in pool.live for ids in pool.lists(live)] + [
            ids for lists in self.lists.values() for ids in lists
        ]
        shown = {divmod(i, pool.sizes.num_blocks) for ids in lists for i in ids[-2:]}
        changed = {(layer, block) for layer, block in differ.nonzero().tolist()}
        chosen = sorted(sorted(shown | changed, key=lambda place: place not in changed)[:SHOWN])
        return [self._line(old, new, layer, block) for layer, block in chosen]

    def _line(self, old: Tensor, new: Tensor, layer: int, block: int) -> str:
        pool = self.pool
        number = layer * pool.sizes.num_blocks + block
        who = "".join(live.name for live in pool.live if number in pool.lists(live)[layer]) or "nobody"
        before, after = (self._cells(caches, layer, block) for caches in (old, new))
        where = f"layer {layer}, block {block}" if pool.sizes.layers > 1 else f"block {block}"
        return f"{where} of {who}: before [{before}]  found [{after}]"

    def _cells(self, caches: Tensor, layer: int, block: int) -> str:
        return " ".join(
            f"{self._cell(caches[:, layer, block, :, slot], layer):2}" for slot in range(min(8, caches.shape[4]))
        )

    def _cell(self, slot: Tensor, layer: int) -> str:
        """A slot by the token of its K, and of its V where that is another."""
        k, v = (self.pool.tokens.name(slot[which], which, layer) for which in (0, 1))
        return k if k == v else f"{k}|{v}"


def _told(name: str) -> str:
    return {".": "empty", "?": "numbers of no token"}.get(name, name)
