"""The rungs with lists for each layer against a dense oracle, and each lesson's own point; the append kernels.

Those with one table are in test_one_table_lessons.py.
"""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.kernels import kv_append_by_table, kv_append_triton, kv_append_triton_full_batch
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.measure.counters import watch
from tests.support.layouts import layout_of
from tests.support.oracles import prompts_of

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
L, H, D = 2, 2, 4
RUNGS = {rung.number: (rung.after.kv_append, 128) for rung in LESSONS if rung.number <= "061"} | {
    "061-triton": (lesson("061").after.kv_append, 1)
}


class Appender:
    """A part `kv_append` over a pool of its own, and a dense copy of what each session should hold."""

    def __init__(self, rung: str, block_size: int = 4, num_blocks: int = 64) -> None:
        part, min_batch = RUNGS[rung]
        shape = {"num_layers": L, "num_kv_heads": H, "head_dim": D, "block_size": block_size, "num_blocks": num_blocks}
        self.kv = KVBlockManager(dtype=torch.float32, device=DEVICE, **shape)
        for cache in (*self.kv.k_layers, *self.kv.v_layers):
            cache.fill_(float("nan"))
        self.append = part(None, self.kv, EngineConfig(triton_kv_append_min_batch=min_batch))
        self.sessions: list[SimpleNamespace] = []
        self.count = 0

    def tokens(self, n: int) -> torch.Tensor:
        """K and V [2, L, n, H, D], another value at every place, every time; as views of a fused projection."""
        size = L * n * 3 * H * D
        fused = torch.arange(self.count, self.count + size, dtype=torch.float32, device=DEVICE).view(L, n, 3, H, D)
        self.count += size
        return fused[:, :, 1:].permute(2, 0, 1, 3, 4)

    def start(self, length: int) -> SimpleNamespace:
        table, kv_new = self.kv.allocate(length), self.tokens(length)
        for p in range(length):
            for layer in range(L):
                block = table[layer][p // self.kv.block_size] - layer * self.kv.num_blocks
                self.kv.k_layers[layer][block, :, p % self.kv.block_size] = kv_new[0, layer, p]
                self.kv.v_layers[layer][block, :, p % self.kv.block_size] = kv_new[1, layer, p]
        self.sessions.append(SimpleNamespace(block_ids_per_layer=table, dense=kv_new))
        return self.sessions[-1]

    def fork(self, parent: SimpleNamespace) -> SimpleNamespace:
        table = self.kv.share(parent.block_ids_per_layer)
        self.sessions.append(SimpleNamespace(block_ids_per_layer=table, dense=parent.dense))
        return self.sessions[-1]

    def step(self, batch: list[SimpleNamespace]) -> None:
        kv_new = self.tokens(len(batch))
        self.append(batch, list(kv_new[0]), list(kv_new[1]))
        for b, session in enumerate(batch):
            session.dense = torch.cat([session.dense, kv_new[:, :, b : b + 1]], dim=2)
        self.check()

    def check(self) -> None:
        """Owner counts are exact, and everybody reads through the table what they appended."""
        self.kv.audit([s.block_ids_per_layer for s in self.sessions])
        for session in self.sessions:
            length = session.dense.shape[2]
            for layer, ids in enumerate(session.block_ids_per_layer):
                assert len(ids) == -(-length // self.kv.block_size)
                assert sum(self.kv.info(i).length for i in ids) == length
                blocks = torch.tensor([i - layer * self.kv.num_blocks for i in ids], dtype=torch.int64)
                for which, caches in enumerate((self.kv.k_layers, self.kv.v_layers)):
                    held = caches[layer][blocks].transpose(1, 2).reshape(-1, H, D)[:length]
                    assert torch.equal(held, session.dense[which, layer])


@pytest.mark.parametrize("rung", RUNGS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_rung_equals_a_dense_oracle(rung, data):
    """Sessions of random lengths, forks and frees between steps of random batches."""
    world = Appender(rung, block_size=data.draw(st.sampled_from([1, 2, 4]), "block size"), num_blocks=400)
    for length in data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5), "lengths"):
        world.start(length)
    for _ in range(data.draw(st.integers(1, 8), "steps")):
        action = data.draw(st.sampled_from(["step", "step", "step", "fork", "free"]))
        chosen = data.draw(st.lists(st.integers(0, len(world.sessions) - 1), min_size=1, unique=True), "batch")
        if action == "step":
            world.step([world.sessions[i] for i in chosen])
        elif action == "fork":
            world.fork(world.sessions[chosen[0]])
        elif len(world.sessions) > 1:
            world.kv.free(world.sessions.pop(chosen[0]).block_ids_per_layer)
        world.check()


@pytest.mark.parametrize("rung", RUNGS)
def test_two_sessions_that_share_a_full_block_each_get_a_block_of_their_own(rung):
    """The article's test for lesson 059: the shared full block is not copied, the token is in slot 0 of a new one."""
    world = Appender(rung)
    parent = world.start(4)
    child = world.fork(parent)
    full = [ids[0] for ids in parent.block_ids_per_layer]
    world.step([parent, child])
    for layer in range(L):
        (a0, a1), (b0, b1) = parent.block_ids_per_layer[layer], child.block_ids_per_layer[layer]
        assert a0 == b0 == full[layer]
        assert a1 != b1
        assert world.kv.info(a0).owners == 2
        assert world.kv.info(a1).owners == world.kv.info(b1).owners == world.kv.info(a1).length == 1


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("same_position", [True, False])
@pytest.mark.parametrize("whole_batch", [True, False])
def test_identity_and_constant_position_in_every_combination(rung, same_position, whole_batch):
    world = Appender(rung)
    batch = [world.start(n) for n in ([5, 5, 5] if same_position else [5, 6, 1])]
    if not whole_batch:
        batch.insert(1, world.fork(batch[1]))  # two of them share a block that is not full: they go one by one
    world.step(batch)
    world.step(batch)


def calls(rung: str, lengths: list[int]) -> int:
    """append_token calls of one step over sessions of these lengths."""
    world = Appender(rung)
    batch = [world.start(n) for n in lengths]
    with patch.object(world.kv, "append_token", wraps=world.kv.append_token) as spy:
        world.step(batch)
    return spy.call_count


def test_what_each_lesson_takes_away():
    inside, at_boundary = [5, 6, 7, 9], [4, 8, 4, 8]
    assert {rung: (calls(rung, inside), calls(rung, at_boundary)) for rung in RUNGS} == {
        "035": (4 * L, 4 * L),
        "036": (4 * L, 4 * L),
        "038": (0, 4 * L),
        "059": (0, 0),
        "060": (0, 0),
        "061": (0, 0),
        "061-triton": (0, 0),
    }


@pytest.mark.parametrize(("number", "selects", "tensors"), [("059", 2 * L, 3 * L), ("060", 0, L), ("061", 0, L)])
def test_lesson_060_needs_no_select_and_no_position_tensor(number, selects, tensors):
    world = Appender(number)
    batch = [world.start(5) for _ in range(4)]
    kv_new = world.tokens(4)
    with watch() as seen:
        world.append(batch, list(kv_new[0]), list(kv_new[1]))
    assert (seen.operations["index_select"], seen.operations["from_list"]) == (selects, tensors)
    assert seen.operations["index_put_"] == 2 * L


@pytest.mark.parametrize(
    ("lengths", "min_batch", "full_min_batch", "kernel"),
    [
        ([5, 5], 1, None, "kv_append_triton_full_batch"),
        ([5, 5], 3, 2, "kv_append_triton_full_batch"),
        ([5, 5], 2, 3, "kv_append_triton"),
        ([5, 6], 2, None, "kv_append_triton"),
        ([5, 6], 3, 1, None),
        ([5, 5], 3, None, None),
    ],
)
def test_the_gates_of_lesson_061(monkeypatch, lengths, min_batch, full_min_batch, kernel):
    world = Appender("061-triton")
    world.append.min_batch, world.append.full_batch_min_batch = min_batch, full_min_batch or min_batch
    used = []
    module = "rosecourse.lessons.l061."
    for name, real in (
        ("kv_append_triton", kv_append_triton),
        ("kv_append_triton_full_batch", kv_append_triton_full_batch),
    ):
        monkeypatch.setattr(module + name, lambda *args, name=name, real=real: (used.append(name), real(*args)))
    world.step([world.start(n) for n in lengths])
    assert used == ([kernel] * L if kernel else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "dim", "block_size"), [(1, 8, 1), (3, 12, 4), (4, 32, 64)])
@pytest.mark.parametrize("fused", [True, False])
def test_the_append_kernels_write_their_slots_and_nothing_else(dtype, heads, dim, block_size, fused):
    B, num_blocks = 5, 9
    generator = torch.Generator().manual_seed(0)
    shape = (B, 3, heads, dim) if fused else (3, B, heads, dim)
    _, key, value = torch.randn(shape, generator=generator).to(DEVICE, dtype).unbind(1 if fused else 0)
    blocks = torch.randperm(num_blocks, generator=generator)[:B].to(DEVICE)
    positions = torch.randint(0, block_size, (B,), generator=generator).to(DEVICE)
    order = torch.randperm(B, generator=generator)[:4].to(DEVICE)
    for pos in (positions, int(positions[0])):
        caches = [torch.full((num_blocks, heads, block_size, dim), 7.0, dtype=dtype, device=DEVICE) for _ in "kv"]
        expected = [cache.clone() for cache in caches]
        if isinstance(pos, int):
            expected[0][blocks, :, pos], expected[1][blocks, :, pos] = key, value
            kv_append_triton_full_batch(*caches, key, value, blocks, pos)
        else:
            target = blocks[:4], slice(None), pos[:4]
            expected[0][target], expected[1][target] = key[order], value[order]
            kv_append_triton(*caches, key, value, order, blocks[:4], pos[:4])
        assert all(torch.equal(cache, right) for cache, right in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("table_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("heads", "dim", "block_size"), [(1, 8, 1), (3, 12, 4), (4, 32, 64)])
@pytest.mark.parametrize("fused", [True, False])
def test_the_append_by_table_writes_its_slots_and_nothing_else(dtype, table_dtype, heads, dim, block_size, fused):
    """Rows of a wider table, and positions that are a row of the persistent state."""
    B, logical, num_blocks = 5, 3, 17
    generator = torch.Generator().manual_seed(0)
    shape = (B, 3, heads, dim) if fused else (3, B, heads, dim)
    _, key, value = torch.randn(shape, generator=generator).to(DEVICE, dtype).unbind(1 if fused else 0)
    table = torch.randperm(num_blocks, generator=generator)[: B * logical].view(B, logical).to(DEVICE, table_dtype)
    wide = torch.full((B, 7), num_blocks, dtype=table_dtype, device=DEVICE)  # a block that is not there
    wide[:, :logical] = table
    positions = torch.tensor([0, block_size - 1, block_size, 2 * block_size, 3 * block_size - 1], device=DEVICE)
    caches = [torch.full((num_blocks, heads, block_size, dim), 7.0, dtype=dtype, device=DEVICE) for _ in "kv"]
    expected = [cache.clone() for cache in caches]
    for b, position in enumerate(positions.tolist()):
        block, slot = int(table[b, position // block_size]), position % block_size
        expected[0][block, :, slot], expected[1][block, :, slot] = key[b], value[b]
    kv_append_by_table(*caches, key, value, wide, positions)
    assert all(torch.equal(cache, right) for cache, right in zip(caches, expected, strict=True))


# -- 036 and 062 --------------------------------------------------------------------------------------------------


def tables_of(number, model, **config):
    """An engine of a lesson, and a way to look at the tables that its next step would use."""
    settings_ = {"block_size": 4, "max_batch_size": 4, "prefix_cache": False} | config
    engine = InferenceEngine(model, EngineConfig(**settings_), lesson(number).after)

    @torch.inference_mode()
    def tables(sessions):
        return engine.decode_step.block_tables(sessions).clone()

    return engine, tables


def expected_tables(engine, sessions):
    """Straight from the lists."""
    width = engine.config.blocks_for(engine.config.max_seq_len)
    lists = [layout_of(engine.kv).lists(session.table) for session in sessions]
    rows = [[ids[layer] + [0] * (width - len(ids[layer])) for ids in lists] for layer in range(engine.kv.num_layers)]
    return torch.tensor(rows, dtype=torch.int32)


# Those with a part that makes block tables, each for the first time or with another cache.
BUILDERS = ["035", "036", "062", "063"]


@pytest.mark.parametrize("number", BUILDERS)
def test_tables_show_the_lists_through_rollover_copy_fork_and_recomputation(small_model, number):
    engine, tables = tables_of(number, small_model)
    params = SamplingParams(max_new_tokens=60, stop_on_eos=False)
    sessions = [engine.new_session(p, params) for p in prompts_of([3, 6, 9], 211)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    sessions.append(engine.fork(sessions[1]))
    for step in range(20):
        assert torch.equal(tables(sessions), expected_tables(engine, sessions))
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
        if step in (4, 11):  # preempted and computed again, on other blocks
            engine.free(sessions[0])
            engine.kv.allocate(4)
            engine.take_tokens(sessions[:1], engine.prefill(sessions[:1]))
        if step == 7:
            sessions.reverse()


@pytest.mark.parametrize("number", BUILDERS)
def test_a_row_of_equal_length_and_last_block_is_not_taken_for_the_old_one(small_model, number):
    """[5, 7] and then [6, 7]: the signature (2, 7) is the same, the session's table is another."""
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1] * 6, SamplingParams(max_new_tokens=8))
    for row in ([5, 7], [6, 7], [6]):
        session.table = layout_of(engine.kv).table(row)
        assert tables([session])[:, 0, :3].tolist() == [row + [0] * (3 - len(row))] * 3


@pytest.mark.parametrize("number", BUILDERS)
def test_lists_without_a_block_are_rows_of_zeros(small_model, number):
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1] * 6, SamplingParams(max_new_tokens=8))
    session.table = layout_of(engine.kv).table([])
    assert not tables([session]).any()
    session.table = layout_of(engine.kv).table([5])
    assert tables([session])[:, 0, :2].tolist() == [[5, 0]] * 3


@pytest.mark.parametrize("number", ["035", "036"])
def test_each_layer_shows_its_own_list(small_model, number):
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1] * 6, SamplingParams(max_new_tokens=8))
    session.table = layout_of(engine.kv).table([])
    session.block_ids_per_layer[1].append(engine.kv.num_blocks + 5)
    assert tables([session])[:, 0, :2].tolist() == [[0, 0], [5, 0], [0, 0]]


def cached_rows(table):
    """The rows that a part keeps of a table, of each layer or of all."""
    cache = table.row_cache or []
    return [row for row, _ in (cache if isinstance(cache, list) else [cache])]


@pytest.mark.parametrize("number", ["036", "062"])
@torch.inference_mode()
def test_no_row_is_built_that_has_not_changed(small_model, number):
    """What the cached rows hold is falsified between the steps: only what is built anew is right again."""
    engine, tables = tables_of(number, small_model)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=30, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    written = []
    for _ in range(7):
        right = expected_tables(engine, [session])[:, 0]
        for row in cached_rows(session.table):
            row.fill_(-1)
        found = tables([session])[:, 0]
        assert torch.all((found == right) | (found == -1))
        written.append([i for i in range(3) if torch.equal(found[:, i], right[:, i])])
        for layer, row in enumerate(cached_rows(session.table)):
            row.copy_(right[layer])  # the step itself needs them
        engine.take_tokens([session], engine.decode_step_sessions([session]))
    # 3 tokens in the first step; the second block begins with the fifth token, the third with the ninth.
    assert written == [[0, 1, 2], [], [0, 1], [], [], [], [1, 2]]


def test_lessons_from_036_on_build_no_tensors(small_model):
    counts = {}
    for number in BUILDERS:
        engine, tables = tables_of(number, small_model)
        sessions = [engine.new_session([n, 1], SamplingParams(max_new_tokens=30)) for n in range(4)]
        engine.prefill(sessions)
        with patch.object(torch, "tensor", wraps=torch.tensor) as tensor:
            for _ in range(5):
                tables(sessions)
        counts[number] = tensor.call_count
    assert counts == {"035": 5 * 3, "036": 0, "062": 0, "063": 0}
