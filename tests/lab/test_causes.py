"""A verdict has one cause of the closed list, and says by what it is known."""

import ctypes
import os
import re
import signal
import sys
from typing import ClassVar

import pytest
import torch

from rosecourse.lab import check
from rosecourse.lab.checks import judging, size_limits
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.world.causes import HEADLINES, Cause
from rosecourse.lab.world.error_reading import NO_DRIVER, CannotTry, Given, described, raised
from rosecourse.lab.world.fault import Fault
from rosecourse.lab.world.learner import Learner
from tests.support.wrong_parts import LOW_BITS, Wrong, damaged, part_of

Right = part_of("038")
RightTables = part_of("036")


class Changed(Right):
    """The course's part, with other K and V."""

    def __call__(self, sessions, keys, values):
        super().__call__(sessions, [self.changed(k) for k in keys], [self.changed(v) for v in values])


class Scaled(Changed):
    def changed(self, numbers):
        return numbers * 1.001


class Negated(Changed):
    def changed(self, numbers):
        return -numbers


class Rounded(Changed):
    def changed(self, numbers):
        return numbers.half().to(numbers.dtype)


class Transposed(Changed):
    def changed(self, numbers):
        return numbers.transpose(1, 2).reshape(numbers.shape)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Scaled, "scaled by 1.001"),
        (Negated, "the sign is another"),
        (Rounded, "rounded to float16"),
        (Transposed, "transposed: the elements of a row are in the order [D, H]"),
    ],
)
def test_values_that_differ_are_shown_beside_those_expected(part, reason):
    verdict = check(part, "038")
    assert verdict.cause is Cause.VALUES_CHANGED, verdict
    assert f"Perhaps:  {reason}" in str(verdict)
    shown = re.search(
        r"expected: the K of session A, layer 0, head 0, position 1: (\[.*\])\n +found: .*?(\[.*\])", str(verdict)
    )
    assert shown, verdict
    assert shown[1] != shown[2]
    assert "the values are not those that came in" in str(verdict).splitlines()[0]


class CopiesLast(Right):
    """Leaves a shared block at once, and copies it when all tokens of the layer have been written."""

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        copies = []
        for ids in block_ids_list:
            info = self.kv.info(ids[-1]) if ids else None
            if info is not None and info.owners > 1 and info.length < self.kv.block_size:
                ids[-1] = self.kv.allocate_block(layer_idx, info.start)
                self.kv.info(ids[-1]).length, info.owners = info.length, info.owners - 1
                copies.append((info.block_index, self.kv.block_index(ids[-1])))
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        for old, new in copies:
            for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
                cache[new] = cache[old]


def test_a_copy_that_is_made_last_is_a_bad_copy_and_no_mixed_up_row():
    verdict = check(CopiesLast, "038")
    assert verdict.cause is Cause.COW_PARTIAL, verdict
    assert "the copy was made after the token had been written, and went over it: copy first" in str(verdict)


class EightRows(Right):
    """Writes the first eight rows of what can be written together, and counts all of them."""

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        super().write(layer_idx, batch_idx[:8], infos[:8], key_new, value_new)
        for info in infos[8:]:
            info.length += 1


class BlocksOfEight(Right):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.right = kv.block_size == 8

    def __call__(self, sessions, keys, values):
        super().__call__(sessions, keys, values if self.right else keys)


class NeverBeginsABlock(Right):
    """Knows neither full blocks nor shared ones."""

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        infos = [self.kv.info(ids[-1]) for ids in block_ids_list]
        self.write(layer_idx, list(range(len(infos))), infos, key_new, value_new)
        for info in infos:
            info.length += 1


def test_what_raises_with_one_session_is_told_before_what_is_left_out_of_forks():
    verdict = check(NeverBeginsABlock, "038")
    assert verdict.cause is Cause.RAISES, verdict
    assert verdict.faults[0].tried == "one session alone, through two block boundaries (step 4)"


def limit(part, cause=Cause.NOTHING_WRITTEN):
    trial = judging.trial_of(part, judging.lesson("038"))
    sizes = [scenario.sizes for scenario in trial.course.world.scenarios]
    return size_limits.limit_of(trial, sizes, Fault("", cause=cause))


def test_a_limit_of_the_batch_is_found(monkeypatch):
    monkeypatch.setattr(size_limits, "MOST_SESSIONS", 24)
    assert limit(EightRows) == "everything is right up to 8 sessions in a step, and wrong from 9 on"
    assert limit(Right) == ""
    assert limit(EightRows, Cause.STATE_KEPT) == ""  # by chance, and in small pools too


def test_a_part_for_blocks_of_one_size():
    said = "everything is right with blocks of 8 slots, and with no other size of a block"
    assert limit(BlocksOfEight) == said
    assert limit(Scaled) == ""


class Remembers(Right):
    """Keeps the rows of the first step of a batch of that size."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.kept = {}

    def __call__(self, sessions, keys, values):
        keys = self.kept.setdefault(len(sessions), keys)
        super().__call__(sessions, keys, values)


def test_what_is_right_with_a_part_made_anew_is_remembered():
    verdict = check(Remembers, "038")
    assert verdict.cause is Cause.STATE_KEPT, verdict
    assert "everything is right if the part is made anew for each call" in str(verdict)


ADDS = Wrong(
    "adds to what is there",
    "",
    ("060",),
    (("slots] = key_new", "slots] += key_new"), ("slots] = value_new", "slots] += value_new")),
)


def test_a_sum_with_nan_is_not_taken_for_nothing():
    verdict = check(damaged("060", ADDS), "060")
    assert verdict.cause is Cause.VALUES_CHANGED, verdict
    assert "NaN came of the new numbers and of what lay there" in str(verdict), verdict


def test_a_limit_of_the_block_is_a_power_of_two():
    said = "everything is right up to 32 slots in a block, and wrong from 64 on"
    assert limit(damaged("060", LOW_BITS)) == said


class RowsOfTheClass(RightTables):
    """Rows by layer and ids, for all engines: they differ in the width of a row, and in the offsets."""

    rows: ClassVar[dict] = {}

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        key = layer_idx, *table[layer_idx]
        if key not in self.rows:
            self.rows[key] = super().get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset).clone()
        return self.rows[key]


class RowsById(RightTables):
    """Keeps its tables' rows itself, by an `id` that another table may have later."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.kept = {}

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        table.row_cache = self.kept.get(id(table))
        row = super().get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
        self.kept[id(table)], table.row_cache = table.row_cache, None
        return row


@pytest.mark.grid
@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (RowsOfTheClass, "everything is right if the class is made anew for each engine"),
        (RowsById, "that has gone: what is kept of a session must go with it"),
    ],
)
def test_rows_that_outlive_a_table_or_an_engine(part, reason):
    verdict = check(part, "036")
    assert verdict.cause is Cause.STATE_KEPT, verdict
    assert reason in str(verdict)


class Padded(RightTables):
    """Past the end of a list its last block is repeated."""

    def __call__(self, sessions):
        tables = super().__call__(sessions).clone()
        for b, session in enumerate(sessions):
            for layer, ids in enumerate(session.block_ids_per_layer):
                tables[layer, b, len(ids) :] = tables[layer, b, len(ids) - 1]
        return tables


class TheLastTwo(RightTables):
    """Enters the last two blocks of a list alone."""

    def __call__(self, sessions):
        tables = super().__call__(sessions).clone()
        for b, session in enumerate(sessions):
            for layer, ids in enumerate(session.block_ids_per_layer):
                tables[layer, b, : max(0, len(ids) - 2)] = 0
        return tables


@pytest.mark.grid
@pytest.mark.parametrize(
    ("part", "cause", "reason"),
    [
        (Padded, Cause.ROW_SHAPE, "past the end of the list one number is repeated"),
        (TheLastTwo, Cause.HALF_WRITTEN, "some entries of this row were not written"),
    ],
)
def test_entries_that_are_no_old_ones(part, cause, reason):
    verdict = check(part, "036")
    assert verdict.cause is cause, verdict
    assert reason in str(verdict)


class SwallowsInWholeBatches(Right):
    """Catches whatever stops the writing of a whole batch, and begins again."""

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        if len(batch_idx) < len(key_new):
            return super().write(layer_idx, batch_idx, infos, key_new, value_new)
        try:
            batch_idx = list(batch_idx)
            return super().write(layer_idx, batch_idx, infos, key_new, value_new)
        except:  # noqa: E722
            return super().write(layer_idx, batch_idx, infos, key_new, value_new)


def test_interrupts_come_in_whole_batches_too():
    verdict = check(SwallowsInWholeBatches, "038")
    assert verdict.cause is Cause.EXITS, verdict


class FourSlots(Right):
    """Right for as many heads as slots, which the sizes of a head seem to show."""

    def __call__(self, sessions, keys, values):
        square = self.kv.k_layers[0].shape[1] == self.kv.block_size
        super().__call__(sessions, keys, values if square else keys)


def test_a_size_is_not_named_where_another_one_changed_with_it():
    assert limit(FourSlots) == ""


class Swapped:
    def __init__(self, kv, model, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        self.kv.append_token(0, sessions[0].block_ids_per_layer[0], keys[0][0], values[0][0])


def test_arguments_in_another_order_are_told():
    verdict = check(Swapped, "038")
    assert verdict.cause is Cause.INTERFACE, verdict
    assert "`model` is used as if it were `kv`: an engine builds a part with (model, kv, config)" in str(verdict)
    assert "sessions: 1 session, with 1 token\n" in str(verdict)
    assert "keys: 2 × a tensor [1, 2, 4], float32, on cpu, strides (" in str(verdict)


class Crashes(Right):
    def __call__(self, sessions, keys, values):
        ctypes.string_at(0)


class Kills(Right):
    def __call__(self, sessions, keys, values):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("part", "cause"), [(Crashes, Cause.OUTSIDE), (Kills, Cause.EXITS)])
def test_how_a_process_ends_is_a_cause(part, cause):
    verdict = check(part, "038")
    assert verdict.cause is cause, verdict
    assert cause.headline in str(verdict).splitlines()[0]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SystemExit(1), Cause.EXITS),
        (KeyboardInterrupt(), Cause.EXITS),
        (GeneratorExit(), Cause.RAISES),
        (ValueError("x"), Cause.RAISES),
    ],
)
def test_what_a_part_raises_has_a_cause(error, cause):
    with pytest.raises(type(error)) as caught:
        raise error
    assert raised(caught.value, Given({}, {})).cause is cause


class Mute(BaseException):
    def __str__(self):
        raise GeneratorExit

    __repr__ = __str__


def test_an_exception_that_cannot_say_what_it_is_is_told_by_its_type():
    """Hazard 40: what a part raises is told, whatever its class does when it is asked."""
    with pytest.raises(Mute) as caught:
        raise Mute
    fault = raised(caught.value, Given({}, {}))
    assert (fault.what, fault.cause) == ("the part raised Mute", Cause.RAISES)


def test_a_part_that_closes_what_it_prints_to_closes_it_for_nobody():
    learner = Learner(Right, ("sessions", "keys", "values"))
    with learner._watched({}):
        print("said")
        sys.stdout.close()
    assert learner.remarks()[0].startswith("the part prints; 1 lines were held back")


def test_no_driver_is_nobodys_fault():
    with pytest.raises(CannotTry, match="Restart the kernel and run from the top"):
        raised(RuntimeError("0 active drivers ([]). There should only be one."), Given({}, {}))


class WithoutDriver(Right):
    def __call__(self, sessions, keys, values):
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def test_a_part_without_a_driver_is_not_refused():
    verdict = check(WithoutDriver, "038")
    assert (verdict.passed, verdict.correct, verdict.cause) == (False, True, None)
    assert f"Not checked: {NO_DRIVER}" in str(verdict)


def test_every_cause_has_a_headline_and_a_passing_verdict_has_no_cause():
    assert set(HEADLINES) == set(Cause)
    assert len(set(HEADLINES.values())) == len(Cause)
    assert Verdict("X", "038").cause is None
    assert Verdict("X", "038", missing=("calls",)).cause is Cause.GOAL_MISSED


def test_arguments_are_described():
    assert described(torch.zeros(2, 3).t()) == "a tensor [3, 2], float32, on cpu, strides (1, 3)"
    assert described([torch.zeros(1)] * 4).startswith("4 × a tensor [1]")
    assert described(3) == "3"
    assert described(object()) == "an object of object"
