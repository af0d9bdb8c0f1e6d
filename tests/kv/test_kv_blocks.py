"""KVBlockManager: against a dense oracle, and case by case."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from rosecourse import LESSONS, BlockError, ConfigError, EngineConfig, InferenceEngine, KVCacheExhausted
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager

L, H, D = 2, 2, 3


def make_kv(block_size: int = 4, num_blocks: int = 8) -> KVBlockManager:
    kv = KVBlockManager(
        num_layers=L,
        num_kv_heads=H,
        head_dim=D,
        block_size=block_size,
        num_blocks=num_blocks,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for cache in (*kv.k_layers, *kv.v_layers):
        cache.fill_(float("nan"))
    return kv


def tokens(count: int, tag: float) -> torch.Tensor:
    """K and V [2, L, count, H, D] with a value of its own at every place."""
    return tag * 1000 + torch.arange(2 * L * count * H * D, dtype=torch.float32).view(2, L, count, H, D)


def append(kv: KVBlockManager, lists: list[list[int]], kv_new: torch.Tensor) -> None:
    """Append kv_new [2, L, 1, H, D] to a session in all layers."""
    for layer in range(L):
        kv.append_token(layer, lists[layer], kv_new[0, layer, 0], kv_new[1, layer, 0])


def write(kv: KVBlockManager, lists: list[list[int]], first: int, kv_new: torch.Tensor) -> None:
    """Write K and V of the positions from `first` on, as prefill does."""
    positions = torch.arange(first, first + kv_new.shape[2])
    for layer in range(L):
        blocks = torch.tensor(lists[layer], dtype=torch.int64)[positions // kv.block_size] - layer * kv.num_blocks
        kv.write_tokens(layer, blocks, positions % kv.block_size, kv_new[0, layer], kv_new[1, layer])


def read(kv: KVBlockManager, lists: list[list[int]], length: int) -> torch.Tensor:
    """[2, L, length, H, D], position p from block p // block_size, slot p % block_size."""
    out = torch.empty(2, L, length, H, D)
    for layer in range(L):
        for p in range(length):
            block = lists[layer][p // kv.block_size] - layer * kv.num_blocks
            out[0, layer, p] = kv.k_layers[layer][block, :, p % kv.block_size]
            out[1, layer, p] = kv.v_layers[layer][block, :, p % kv.block_size]
    return out


class AgainstDenseOracle(RuleBasedStateMachine):
    """Random sessions, appends, forks and frees over a tiny pool; the oracle keeps each session's K and V densely."""

    sessions = Bundle("sessions")

    @initialize(block_size=st.sampled_from([1, 2, 4, 16]), num_blocks=st.integers(1, 7))
    def start(self, block_size, num_blocks):
        self.kv = make_kv(block_size, num_blocks)
        self.lists: dict[int, list[list[int]]] = {}
        self.dense: dict[int, torch.Tensor] = {}
        self.serial = 0

    def unchanged_if_exhausted(self, call):
        """Run `call`; when the pool is exhausted nothing may have changed. True if it went through."""
        before = (self.kv._free_block_indices, self.kv._block_infos, self.lists)
        snapshot = repr(before)
        try:
            call()
        except KVCacheExhausted:
            assert repr(before) == snapshot
            return False
        return True

    def add(self, lists, dense):
        self.serial += 1
        self.lists[self.serial], self.dense[self.serial] = lists, dense
        return self.serial

    @rule(target=sessions, length=st.integers(0, 20))
    def allocate(self, length):
        made = []
        if not self.unchanged_if_exhausted(lambda: made.append(self.kv.allocate(length))):
            assert -(-length // self.kv.block_size) > self.kv.num_available()
            return multiple()
        new = tokens(length, self.serial + 1)
        write(self.kv, made[0], 0, new)
        return self.add(made[0], new)

    @rule(session=sessions)
    def append_one(self, session):
        new = tokens(1, self.serial + 0.5)
        self.serial += 1
        lists = self.lists[session]
        needed = self.kv.blocks_to_append([lists[0]])
        had = self.kv.num_available()
        if self.unchanged_if_exhausted(lambda: append(self.kv, lists, new)):
            self.dense[session] = torch.cat([self.dense[session], new], dim=2)
            assert had - self.kv.num_available() == needed
        else:
            assert needed > had

    @rule(batch=st.lists(sessions, unique=True, max_size=4))
    def blocks_for_a_batch_are_foretold(self, batch):
        needed = self.kv.blocks_to_append(self.lists[s][0] for s in batch)
        had = self.kv.num_available()
        if needed <= had:
            for session in batch:
                self.append_one(session)
            assert had - self.kv.num_available() == needed

    @rule(target=sessions, session=sessions)
    def fork(self, session):
        return self.add(self.kv.share(self.lists[session]), self.dense[session])

    @rule(session=consumes(sessions))
    def free(self, session):
        self.kv.free(self.lists.pop(session))
        del self.dense[session]

    @invariant()
    def everyone_reads_their_own(self):
        if hasattr(self, "kv"):
            self.kv.audit(self.lists.values())
            for session, dense in self.dense.items():
                length = dense.shape[2]
                assert all(len(ids) == -(-length // self.kv.block_size) for ids in self.lists[session])
                assert torch.equal(read(self.kv, self.lists[session], length), dense)


TestAgainstDenseOracle = AgainstDenseOracle.TestCase
TestAgainstDenseOracle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_double_free_raises_and_the_new_owner_keeps_its_block():
    kv = make_kv(num_blocks=1)
    first = kv.allocate(3)
    kv.free(first)
    second = kv.allocate(3)
    for _ in range(2):
        with pytest.raises(BlockError, match="freed twice"):
            kv.free(first)
        kv.audit([second])


def test_a_table_that_shows_blocks_it_does_not_own_frees_nothing():
    kv = make_kv()
    held = kv.allocate(5)
    for layer in range(L):
        kv.info(held[layer][0]).owners = 0
    with pytest.raises(BlockError, match="does not own"):
        kv.free(held)
    assert [len(ids) for ids in held] == [2] * L
    held[0][0] = 7
    with pytest.raises(BlockError, match="not in use"):
        kv.free(held)
    with pytest.raises(BlockError, match="or a copy"):
        kv.free(BlockTable([[7], []]))


def test_blocks_to_append_counts_the_copies_that_siblings_need():
    kv = make_kv(block_size=4, num_blocks=8)
    parent = kv.allocate(2)
    siblings = [kv.share(parent) for _ in range(2)]
    assert kv.blocks_to_append([parent[0]]) == 1
    assert kv.blocks_to_append([parent[0], siblings[0][0]]) == 2
    assert kv.blocks_to_append(t[0] for t in (parent, *siblings)) == 2  # the last owner writes in place
    assert kv.blocks_to_append([[], kv.allocate(4)[0], kv.allocate(3)[0]]) == 2


def test_an_exhausted_pool_says_what_to_do():
    kv = make_kv(num_blocks=2)
    with pytest.raises(KVCacheExhausted, match="3 KV blocks needed, 2 of 2 available: free a session"):
        kv.allocate(9)
    kv.audit([])


@pytest.mark.parametrize("fail_at", range(4))
def test_an_allocation_that_fails_in_the_middle_changes_nothing(monkeypatch, fail_at):
    kv = make_kv()
    before = repr((kv._free_block_indices, kv._block_infos))
    real, calls = kv.allocate_block, []

    def failing(*args):
        calls.append(args)
        if len(calls) > fail_at:
            raise KVCacheExhausted("injected")
        return real(*args)

    monkeypatch.setattr(kv, "allocate_block", failing)
    with pytest.raises(KVCacheExhausted, match="injected"):
        kv.allocate(8)
    assert repr((kv._free_block_indices, kv._block_infos)) == before


def test_copy_on_write_with_no_free_block_changes_nothing_and_works_after_a_free():
    kv = make_kv(num_blocks=2)
    parent = kv.allocate(2)
    write(kv, parent, 0, tokens(2, 1))
    child = kv.share(parent)
    other = kv.allocate(1)
    with pytest.raises(KVCacheExhausted):
        append(kv, child, tokens(1, 2))
    kv.audit([parent, child, other])
    kv.free(other)
    append(kv, child, tokens(1, 2))
    append(kv, parent, tokens(1, 3))
    kv.audit([parent, child])
    assert torch.equal(read(kv, child, 3), torch.cat([tokens(2, 1), tokens(1, 2)], 2))
    assert torch.equal(read(kv, parent, 3), torch.cat([tokens(2, 1), tokens(1, 3)], 2))


def test_a_fork_at_a_block_boundary_copies_nothing():
    kv = make_kv()
    parent = kv.allocate(4)
    write(kv, parent, 0, tokens(4, 1))
    child = kv.share(parent)
    append(kv, child, tokens(1, 2))
    assert child[0][0] == parent[0][0]
    assert child[0][1:] != []
    assert kv.info(parent[0][0]).owners == 2
    kv.audit([parent, child])


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 31, 32])
def test_blocks_are_as_many_as_the_length_needs(length):
    kv = make_kv()
    appended = kv.allocate(0)
    for _ in range(length):
        append(kv, appended, tokens(1, 1))
    allocated = kv.allocate(length) if length <= 16 else appended
    for ids in (*appended, *allocated):
        assert len(ids) == -(-length // 4)
        assert [kv.info(i).start for i in ids] == list(range(0, length, 4))
        assert sum(kv.info(i).length for i in ids) == length


def broken_pools():
    """Ways to break a pool by hand; `check` must see each."""

    def owner_dropped(kv, lists):
        kv.info(lists[0][0]).owners -= 1

    def owner_added(kv, lists):
        kv.info(lists[1][0]).owners += 1

    def leaked(kv, lists):
        lists[0].pop()

    def freed_and_held(kv, lists):
        kv._free_block_indices[0].append(lists[0][0])

    def lost(kv, lists):
        kv._free_block_indices[1].pop()

    def twice_in_a_list(kv, lists):
        lists[0].append(lists[0][0])

    def of_another_layer(kv, lists):
        lists[0], lists[1] = lists[1], lists[0]

    def overfull(kv, lists):
        kv.info(lists[0][0]).length = 5

    def not_full(kv, lists):
        kv.info(lists[0][0]).length = 3

    def displaced(kv, lists):
        kv.info(lists[0][1]).start, kv.info(lists[0][1]).length = 3, 3

    def a_layer_behind(kv, lists):
        kv.info(lists[1][1]).length = 1

    def cached_unknown(kv, lists):
        kv.info(lists[0][0]).cached = True

    def miscounted(kv, lists):
        kv._idle_block_ids[0][lists[0][0]] = None

    return [
        owner_dropped,
        owner_added,
        leaked,
        freed_and_held,
        lost,
        twice_in_a_list,
        of_another_layer,
        overfull,
        not_full,
        displaced,
        a_layer_behind,
        cached_unknown,
        miscounted,
    ]


@pytest.mark.parametrize("break_it", broken_pools(), ids=lambda f: f.__name__)
def test_check_sees_a_broken_pool(break_it):
    kv = make_kv()
    lists = kv.allocate(6)
    kv.audit([lists])
    break_it(kv, lists)
    with pytest.raises(BlockError):
        kv.audit([lists])


@pytest.mark.parametrize(
    "name", ["num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim", "dtype", "device"]
)
def test_an_argument_that_cannot_be_is_named_with_its_value(name):
    good = {"num_layers": 1, "num_blocks": 2, "num_kv_heads": 1, "block_size": 4, "head_dim": 3}
    good |= {"dtype": torch.float32, "device": torch.device("cpu")}
    with pytest.raises(ConfigError, match=rf"^{name} is -7"):
        KVBlockManager(**good | {name: -7})


def test_a_block_begins_at_position_0_unless_it_is_told_and_may_be_empty():
    kv = make_kv()
    table = kv.share([[] for _ in range(L)])
    assert kv.length(table) == 0
    for layer, ids in enumerate(table):
        ids.append(kv.allocate_block(layer))
        assert (kv.info(ids[0]).start, kv.info(ids[0]).length) == (0, 0)
    kv.audit([table])


@pytest.mark.parametrize("rung", LESSONS[:2], ids=lambda rung: rung.number)
def test_a_table_is_of_32_bit_integers(rung, small_model):
    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=2), rung.after)
    session = engine.new_session([1, 2, 3])
    engine.take_tokens([session], engine.prefill([session]))
    assert engine.decode_step.block_tables([session]).dtype == torch.int32
