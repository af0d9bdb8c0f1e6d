"""The KVBlockManager with one table for all layers: random runs against a dense oracle."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from rosecourse import KVCacheExhausted
from tests.support.one_table import append, copy, make_kv, read, tokens, write


class AgainstDenseOracle(RuleBasedStateMachine):
    """A tiny pool; the oracle keeps each session's K and V densely, and those of each block that the prefix cache has.

    A kept block has its content for as long as nobody has said that it is forgotten.
    """

    sessions = Bundle("sessions")

    @initialize(block_size=st.sampled_from([1, 2, 4, 16]), num_blocks=st.integers(1, 7))
    def start(self, block_size, num_blocks):
        self.kv = make_kv(block_size, num_blocks)
        self.tables: dict[int, list[int]] = {}
        self.dense: dict[int, torch.Tensor] = {}
        self.kept: dict[int, torch.Tensor] = {}  # block -> [2, L, block_size, H, D]
        self.left: list[int] = []  # kept blocks without an owner; who was left first comes first
        self.kv.forget = self.forget
        self.serial = 0

    def forget(self, block):
        assert block == self.left.pop(0), "the block that was left first goes first"
        del self.kept[block]

    def holders(self, block):
        return sum(block in table for table in self.tables.values())

    def books(self):
        kv = self.kv
        return repr((kv._free_block_indices, sorted(kv._idle_blocks), kv._block_infos, self.tables, list(self.kept)))

    def went_through(self, needed, call):
        """Run a call that needs so many new blocks. Where there are fewer it must raise, and change nothing."""
        had, before = self.kv.num_available(), self.books()
        try:
            call()
        except KVCacheExhausted:
            assert needed > had
            assert self.books() == before
            return False
        assert self.kv.num_available() == had - needed
        return True

    def add(self, table, dense):
        self.serial += 1
        self.tables[self.serial], self.dense[self.serial] = table, dense
        return self.serial

    @rule(target=sessions, length=st.integers(0, 20), shared=st.lists(st.integers(0, 9), unique=True, max_size=3))
    def allocate(self, length, shared):
        """The beginning may be kept blocks, in any order: what they hold, the oracle knows."""
        size, kept = self.kv.block_size, list(self.kept)
        blocks = [kept[number] for number in shared if number < len(kept)][: length // size]
        idle = [block for block in blocks if block in self.left]
        dense = [self.kept[block] for block in blocks]
        made = []
        needed = -(-length // size) - len(blocks) + len(idle)
        self.left = [block for block in self.left if block not in idle]
        if not self.went_through(needed, lambda: made.append(self.kv.allocate(length, blocks))):
            self.leave(idle)  # they were asked for, and go last now
            return multiple()
        new = tokens(length - len(blocks) * size, self.serial + 1)
        write(self.kv, made[0], len(blocks) * size, new)
        return self.add(made[0], torch.cat([*dense, new], dim=2))

    def needed(self, batch):
        """Counted from the tables: one for each full one, and for each writer of a shared block but its last owner."""
        size = self.kv.block_size
        tables = [self.tables[session] for session in batch]
        ends = [table[-1] for table in tables if len(table) * size > table.num_tokens]
        copies = sum(min(ends.count(block), self.holders(block) - 1) for block in set(ends))
        return len(tables) - len(ends) + copies

    def foretold(self, batch):
        needed = self.needed(batch)
        assert self.kv.blocks_to_append([self.tables[session] for session in batch]) == needed
        assert self.kv.can_append([self.tables[s] for s in batch]) is (needed <= self.kv.num_available())
        return needed

    @rule(batch=st.lists(sessions, unique=True, min_size=1, max_size=5))
    def step(self, batch):
        tables, dense = [self.tables[s] for s in batch], [self.dense[s] for s in batch]
        self.serial += 1
        if self.went_through(
            self.foretold(batch), lambda: append(self.kv, tables, dense, tokens(len(batch), self.serial + 0.5))
        ):
            self.dense.update(zip(batch, dense, strict=True))

    @rule(batch=st.lists(sessions, unique=True, min_size=1, max_size=5))
    def place_and_no_more(self, batch):
        """As a step whose forward is interrupted: the blocks stay, and there is nothing left to place."""
        tables, copies = [self.tables[s] for s in batch], []
        in_use = set(self.kv.blocks_in_use) - set(self.left)
        if not self.went_through(self.foretold(batch), lambda: copies.extend(self.kv.place(tables))):
            return
        assert in_use <= set(self.kv.blocks_in_use), "place freed a block"
        sources, destinations = {source for source, _ in copies}, [destination for _, destination in copies]
        assert len(set(destinations)) == len(destinations)
        assert not in_use & set(destinations)
        assert sources <= in_use
        copy(self.kv, copies)
        before = self.books()
        assert self.kv.place(tables) == []
        assert self.books() == before

    @rule(target=sessions, session=sessions)
    def fork(self, session):
        return self.add(self.kv.share(self.tables[session]), self.dense[session])

    @rule(session=consumes(sessions))
    def free(self, session):
        table = self.tables.pop(session)
        blocks = list(table)
        self.kv.free(table)
        del self.dense[session]
        self.leave([block for block in blocks if block in self.kept and not self.holders(block)])

    def leave(self, blocks):
        """The last owner of these leaves them, the last one first."""
        self.left = [block for block in self.left if block not in blocks] + blocks[::-1]

    def full_blocks(self, session):
        """Each full block of a session and what is in it."""
        size, table = self.kv.block_size, self.tables[session]
        return [
            (table[n], self.dense[session][:, :, n * size : (n + 1) * size]) for n in range(table.num_tokens // size)
        ]

    @rule(session=sessions)
    def keep(self, session):
        for block, dense in self.full_blocks(session):
            self.kv.keep(block)
            self.kept[block] = dense

    @rule(session=sessions)
    def unkeep(self, session):
        for block, _ in self.full_blocks(session)[-1:]:
            self.kv.unkeep(block)
            self.kept.pop(block, None)

    @invariant()
    def everyone_reads_their_own(self):
        if not hasattr(self, "kv"):
            return
        kv = self.kv
        kv.audit(self.tables.values(), self.kept)
        for session, dense in self.dense.items():
            table = self.tables[session]
            assert table.num_tokens == kv.length(table) == dense.shape[2]
            assert torch.equal(read(kv, table), dense)
        for block, dense in self.kept.items():
            held = torch.stack([kv.keys[:, block], kv.values[:, block]]).transpose(2, 3)
            assert torch.equal(held, dense)
        held = {block for table in self.tables.values() for block in table}
        assert kv.num_available() == kv.num_blocks - len(held)
        assert set(self.left) == set(self.kept) - held


TestAgainstDenseOracle = AgainstDenseOracle.TestCase
TestAgainstDenseOracle.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
