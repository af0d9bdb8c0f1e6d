"""`check` is fed wrong parts, and names the fault of each."""

import re
from collections import Counter

import pytest
import torch

from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from tests.support.wrong_parts import cases, damaged
from tests.support.wrong_parts_append import APPEND
from tests.support.wrong_parts_ideas import IDEAS
from tests.support.wrong_parts_partial import FITTING, PARTIAL
from tests.support.wrong_parts_rows import ROWS, ByPlace, FirstLayerDecides, RightWholeTable, WholeTable, kept_rows
from tests.support.wrong_parts_tables import TABLES

if TRITON_AVAILABLE:
    from tests.support import kernel_parts

CASES = [case for case in cases(TABLES + APPEND + IDEAS + PARTIAL + FITTING) if TRITON_AVAILABLE or case[0] != "061"]
CAUSES = {
    "off by one: one slot too few": "rollover-missed",
    "new block begins at 0": "books-wrong",
    "new block of another layer": "books-wrong",
    "new block not in the list": "books-wrong",
    "a block leaks": "books-wrong",
    "a shared block is not copied": "cow-missed",
    "length not raised": "books-wrong",
    "the row of another": "wrong-session",
    "the batch reversed": "wrong-session",
    "K and V swapped": "k-v-swapped",
    "K in both caches": "k-v-swapped",
    "V is not written": "half-written",
    "one head alone": "half-written",
    "heads in another order": "values-changed",
    "the first layer's": "wrong-layer",
    "all in the first layer's cache": "wrong-layer",
    "through float16": "values-changed",
    "the wrong slot": "wrong-slot",
    "the next block": "wrong-block",
    "the slot of the first for all": "wrong-slot",
    "the order of the first call": "state-kept",
    "the manager's method replaced": "tampering",
    "the length alone is the signature": "row-stale",
    "never written again": "row-stale",
    "ids, not indices": "wrong-block",
    "the first layer's rows": "wrong-layer",
    "-1 past the end": "row-shape",
    "int64": "row-shape",
    "nothing returned": "interface",
}


@pytest.mark.grid(shows=lambda number, wrong: {number, CAUSES.get(wrong.fault)})
@pytest.mark.parametrize(("number", "wrong"), CASES, ids=str)
def test_the_fault_is_named(number, wrong):
    verdict = check(damaged(number, wrong), number)
    assert not verdict.passed
    assert verdict.correct == wrong.correct, verdict
    assert re.search(wrong.says, str(verdict)), f"{wrong.says!r} is not in\n{verdict}"
    assert verdict.cause == CAUSES.get(wrong.fault, verdict.cause), verdict
    assert verdict.cause is not None, verdict


@pytest.mark.grid
@pytest.mark.parametrize(("key", "signature"), ROWS)
def test_a_list_that_looks_like_the_one_kept_is_met(key, signature):
    verdict = check(kept_rows(key, signature), "036")
    assert not verdict.correct, verdict
    assert "; it must be block" in str(verdict)


@pytest.mark.grid
@pytest.mark.parametrize(
    ("part", "says"),
    [
        (ByPlace, "stale: entries that are another session's: by what does a session find its row"),
        (
            WholeTable,
            r"back, with nobody else in a batch \(step 2\)\n.*says 24; it must be block 2\n[^$]*row is not renewed",
        ),
        (FirstLayerDecides, r"layer 1, session C[^$]*stale: this is the session's row of an earlier step"),
    ],
)
def test_what_is_kept_otherwise_than_by_the_table_goes_stale(part, says):
    verdict = check(part, "036")
    assert not verdict.correct
    assert re.search(says, str(verdict)), verdict


def test_rows_of_others_are_not_to_be_built_anew():
    verdict = check(RightWholeTable, "036")
    assert verdict.correct
    assert (
        "still 456 block ids, last ones of lists not counted, put into rows "
        "that had shown them before in a step of 16 sessions of which 4 have" in str(verdict)
    )
    assert "Perhaps" not in str(verdict)


@pytest.mark.grid(shows=lambda name: {kernel_parts.CAUSES[getattr(kernel_parts, name)]})
@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
@pytest.mark.parametrize(
    "name",
    [
        "rows_without_strides",
        "one_stride",
        "no_mask",
        "rows_of_128",
        "offsets_in_32_bits",
        "two_launches",
        "constant_position",
        "kv_append_triton_full_batch",  # copies before the launch
    ],
)
def test_the_fault_of_a_kernel_is_named(name):
    function = getattr(kernel_parts, name)
    verdict = check(kernel_parts.with_kernel(function), "061")
    assert re.search(kernel_parts.FAULTS[function], str(verdict)), verdict
    assert verdict.cause == kernel_parts.CAUSES[function], verdict
    assert not verdict.passed


@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
def test_a_position_in_the_session_is_known_by_where_a_row_went():
    part = kernel_parts.with_kernel(kernel_parts.launch, kernel_parts.POSITION_IN_SESSION)
    verdict = check(part, "061")
    assert verdict.cause == "wrong-slot", verdict
    assert "the slot is past the block's end, and the next head begins there" in str(verdict)


@pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
def test_lists_for_the_other_kernel_are_not_counted():
    verdict = check(kernel_parts.with_kernel(kernel_parts.launch, kernel_parts.THREE_TENSORS), "061")
    assert verdict.passed, verdict
    assert "not to be seen on a CPU: reads behind a row, more binaries" in str(verdict) or torch.cuda.is_available()


def test_each_lesson_has_a_dozen():
    counted = Counter(number for number, _ in CASES)
    assert set(counted) >= {"036", "038", "059", "060"}
    assert min(counted.values()) >= 12
