"""What a step costs is observed from its memory, its operations and its lines, however the part is written."""

import array
import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from rosecourse import lesson
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lab.checks.observing import observe
from rosecourse.lab.checks.operations_seen import Operations
from rosecourse.lab.course.l036 import COPIED, GROWN, UNCHANGED
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.situations import INSIDE
from rosecourse.lab.world.worlds import BLOCK_TABLES, KV_APPEND
from tests.support.right_parts import RIGHT, IndexPut

# -- what is counted is judged too ------------------------------------------------------------------------------------


class LosesOneOfFour(IndexPut):
    """Wrong in batches of four alone."""

    def __call__(self, sessions, keys, values):
        values = [v.flip(0) for v in values] if len(sessions) == 4 else values
        super().__call__(sessions, keys, values)


def test_a_step_that_is_counted_has_to_be_right():
    of_four = replace(INSIDE, n=4, layers=2)
    with pytest.raises(PartIsWrong) as wrong:
        observe(Learner(LosesOneOfFour, KV_APPEND.called_with), KV_APPEND, of_four, "cpu")
    assert wrong.value.fault.cause is Cause.WRONG_SESSION
    assert wrong.value.fault.tried == str(of_four)
    observe(Learner(LosesOneOfFour, KV_APPEND.called_with), KV_APPEND, replace(of_four, n=5), "cpu")


@pytest.mark.parametrize(("once", "pools"), [(True, 1), (False, 3)])  # as it is, by half, and for its stores
def test_a_step_is_made_again_only_for_what_is_counted(once, pools):
    made = []

    def oracle(*args):
        made.append(KV_APPEND.oracle(*args))
        return made[-1]

    observe(
        Learner(IndexPut, KV_APPEND.called_with), replace(KV_APPEND, oracle=oracle), replace(INSIDE, once=once), "cpu"
    )
    assert len(made) == pools


# -- block tables -----------------------------------------------------------------------------------------------------


class Rebuilt:
    """Fills every row at every step; subclasses say how."""

    def __init__(self, model, kv, config):
        self.kv, self.width = kv, config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.width, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.width)
        host.zero_()
        for b, session in enumerate(sessions):
            for layer, ids in enumerate(session.block_ids_per_layer):
                self.fill(host[layer, b].numpy(), ids, layer * self.kv.num_blocks)
        return self.buffer.to_device()


class BySlices(Rebuilt):
    def fill(self, row, ids, offset):
        row[: len(ids)] = ids
        row[: len(ids)] -= offset


class ByMemmove(Rebuilt):
    def fill(self, row, ids, offset):
        cells = (ctypes.c_int32 * len(ids))(*(i - offset for i in ids))
        ctypes.memmove(row.ctypes.data, cells, 4 * len(ids))


class ByBuffer(Rebuilt):
    def fill(self, row, ids, offset):
        row[: len(ids)] = np.frombuffer(array.array("q", ids), dtype=np.int64) - offset


class ByElements(Rebuilt):
    def fill(self, row, ids, offset):
        for n, block_id in enumerate(ids):
            row[n] = self.kv.info(block_id).block_index


class ByList(Rebuilt):
    """The rows are lists, which nobody keeps."""

    def __call__(self, sessions):
        n = self.kv.num_blocks
        lists = [
            [i % n for i in session.block_ids_per_layer[layer]]
            for layer in range(self.kv.num_layers)
            for session in sessions
        ]
        padded = np.array([row + [0] * (self.width - len(row)) for row in lists], dtype=np.int32)
        return torch.from_numpy(padded).view(self.kv.num_layers, len(sessions), self.width)


class KeptAsBytes(Rebuilt):
    """Kept in a form that cannot be written, with the whole list as the signature."""

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.width)
        for b, session in enumerate(sessions):
            table = session.block_ids_per_layer
            table.row_cache = table.row_cache or [((), b"")] * len(table)
            for layer, ids in enumerate(table):
                if table.row_cache[layer][0] != tuple(ids):
                    row = array.array("i", [i % self.kv.num_blocks for i in ids] + [0] * (self.width - len(ids)))
                    table.row_cache[layer] = tuple(ids), row.tobytes()
                host[layer, b].numpy()[:] = np.frombuffer(table.row_cache[layer][1], dtype=np.int32)
        return self.buffer.to_device()


def seen(part, situation, world=BLOCK_TABLES):
    return observe(Learner(part, world.called_with), world, situation, "cpu")


@pytest.mark.parametrize("part", [BySlices, ByMemmove, ByBuffer, ByElements, ByList, lesson("035").after.block_tables])
@pytest.mark.parametrize("situation", [UNCHANGED, GROWN], ids=str)
def test_rows_that_are_built_anew_are_seen(part, situation):
    found = seen(part, situation)
    assert found.written_anew == found.ids > 0


@pytest.mark.parametrize("part", [*RIGHT["036"], lesson("036").after.block_tables])
@pytest.mark.parametrize("situation", [UNCHANGED, GROWN, COPIED], ids=str)
def test_rows_that_are_kept_are_not(part, situation):
    found = seen(part, situation)
    assert found.written_anew == 0
    assert found.ids > 100


def test_rows_that_are_kept_as_bytes_and_built_anew_when_they_change():
    assert seen(KeptAsBytes, UNCHANGED).written_anew == 0
    grown = seen(KeptAsBytes, GROWN)
    assert grown.written_anew == grown.ids


# -- appends ----------------------------------------------------------------------------------------------------------


class OneByOne(IndexPut):
    """Every row by itself; subclasses say how."""

    def write(self, layer, infos, key, value):
        for cache, new in ((self.kv.k_layers[layer], key), (self.kv.v_layers[layer], value)):
            for info, row in zip(infos, new, strict=True):
                self.store(cache, info, row)


class ByNumpy(OneByOne):
    def store(self, cache, info, row):
        cache.numpy()[info.block_index, :, info.length] = row.numpy()


class ByViews(OneByOne):
    def store(self, cache, info, row):
        cache[info.block_index, :, info.length].copy_(row)


class ByMemory(OneByOne):
    def store(self, cache, info, row):
        for head, numbers in enumerate(row):
            ctypes.memmove(cache[info.block_index, head, info.length].data_ptr(), numbers.data_ptr(), numbers.nbytes)


class InOneLine(IndexPut):
    def write(self, layer, infos, key, value):
        keys, values = self.kv.k_layers[layer].numpy(), self.kv.v_layers[layer].numpy()
        at = [(info.block_index, slice(None), info.length) for info in infos]
        [(keys.__setitem__(w, k), values.__setitem__(w, v)) for w, k, v in zip(at, key.numpy(), value.numpy())]  # noqa: B905


@pytest.mark.parametrize("part", [ByNumpy, ByViews, ByMemory, InOneLine, lesson("035").after.kv_append])
def test_each_store_is_seen_however_it_is_made(part):
    assert seen(part, INSIDE, KV_APPEND).stores == 2 * 16 * 6  # K and V, sessions, layers


@pytest.mark.parametrize("part", [*RIGHT["038"], lesson("038").after.kv_append])
def test_one_store_for_all_is_one(part):
    assert seen(part, INSIDE, KV_APPEND).stores == 2 * 6


# -- operations -------------------------------------------------------------------------------------------------------

CACHE, ROWS = torch.zeros(9, 2, 4, 3), torch.ones(5, 2, 3)


def counted(work):
    operations = Operations([CACHE], 6)
    with operations:
        work()
    return operations


@pytest.mark.parametrize(
    "copy",
    [
        lambda: ROWS * 1,
        lambda: torch.empty_like(ROWS).copy_(ROWS),
        lambda: ROWS.transpose(0, 1).contiguous(),
        lambda: ROWS[[0, 1]],
        lambda: torch.stack(list(ROWS)),
        lambda: ROWS.clone(),
        lambda: torch.from_numpy(ROWS.numpy().copy()),
        lambda: ROWS.double(),
    ],
)
def test_a_copy_of_rows_is_one_by_whatever_name(copy):
    assert counted(copy).copies == 1


def test_views_and_stores_are_no_copies():
    def store():
        CACHE[torch.tensor([1, 2, 3, 4, 5]), :, 2] = ROWS.view(5, 2, 3)[:, :2].to(ROWS.dtype).contiguous()
        CACHE[1] = CACHE[2]

    operations = counted(store)
    assert operations.copies == 0
    assert operations.moves == 3  # a list becomes a tensor, and two stores
    assert operations.index_tensors == 1


@pytest.mark.parametrize(
    ("index", "tensors", "lists", "by_list"),
    [
        (lambda: ROWS[[0, 2]], 1, 1, 1),
        (lambda: ROWS[torch.tensor([0, 2])], 1, 1, 0),
        (lambda: ROWS[torch.arange(3)], 1, 0, 0),
        (lambda: ROWS[torch.zeros(3, dtype=torch.int64) + 1], 1, 0, 0),
        (lambda: ROWS.index_select(0, torch.full((3,), 2)), 1, 0, 0),
        (lambda: ROWS.index_select(0, torch.from_numpy(np.array([1, 2]))), 1, 0, 0),
        (lambda: ROWS.new_tensor([1.0, 2.0]), 0, 1, 0),
        (lambda: ROWS[2, :, 1:], 0, 0, 0),
    ],
)
def test_index_tensors_are_seen_however_they_are_made(index, tensors, lists, by_list):
    operations = counted(index)
    assert (operations.index_tensors, operations.list_tensors, operations.indexed) == (tensors, lists, by_list)


def test_an_index_that_was_there_before_is_not_built():
    index = torch.tensor([1, 2])
    assert counted(lambda: ROWS[index]).index_tensors == 0


def test_sparse_tensors_are_let_be():
    operations = counted(lambda: ROWS.flatten(1).to_sparse_csr().to_dense())
    assert operations.moves > 0
