"""Sizes at the edges, inputs that a part changes, interrupts that it swallows, and pools without room."""

import re

import pytest
import torch

from rosecourse import lesson
from rosecourse.lab.course import course_of
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.oracle import AppendOracle
from rosecourse.lab.world.pool import Pool, Sizes
from rosecourse.lab.world.tags import Tags, letter
from tests.support.wrong_parts import LOW_BITS, damaged

Append = lesson("060").after.kv_append
Tables = lesson("036").after.block_tables


def told(part, number, named="sessions of equal length, through"):
    """What the scenarios with this name say of a part."""
    world = course_of(number).world
    for scenario in world.scenarios:
        if re.match(named, scenario.name):
            try:
                scenario.story(world.oracle(Learner(part, world.called_with), scenario.sizes))
            except PartIsWrong as wrong:
                return "\n".join((wrong.fault.what, *wrong.fault.details))
    return "nothing"


class InARow(Append):
    """Takes blocks for neighbours when as many lie between the first and the last."""

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        first, last = infos[0].block_index, infos[-1].block_index
        if last - first == len(infos) - 1 == len(key_new) - 1:
            infos = sorted(infos, key=lambda info: info.block_index)
        super().write(layer_idx, batch_idx, infos, key_new, value_new)


class AsManyAsTheShortest(Append):
    """A copy has as many slots as the shortest of the shared blocks holds."""

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        shared = [info for ids in block_ids_list if ids and (info := self.kv.info(ids[-1])).owners > 1]
        lengths = [info.length for info in shared]
        least = min(lengths, default=0)
        before = [layer[layer_idx].clone() for layer in (self.kv.k_layers, self.kv.v_layers)]
        ids_before = [list(ids) for ids in block_ids_list]
        super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        for then, ids in zip(ids_before, block_ids_list, strict=True):
            if then and len(ids) == len(then) and ids[-1] != then[-1]:
                new, length = self.kv.block_index(ids[-1]), self.kv.info(ids[-1]).length - 1
                for layers, old in zip((self.kv.k_layers, self.kv.v_layers), before, strict=True):
                    layers[layer_idx][new, :, least:length] = old[new, :, least:length]


@pytest.mark.parametrize(
    ("part", "named", "says"),
    [
        (InARow, "new blocks that look like a run", "position 4 of session B in layer 0 holds the K of session C"),
        (AsManyAsTheShortest, "two families of forks", "position 5 of session . in layer 0 is lost"),
        (damaged("060", LOW_BITS), "slots that differ in one bit", "position 33 of session . in layer 0 was never"),
    ],
)
def test_stories_of_what_looks_alike(part, named, says):
    assert re.search(says, told(part, "060", named))
    assert told(Append, "060", named) == "nothing"


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_element_says_whose_it_is(dtype):
    tags = Tags(2, 3, 4, dtype)
    tokens = tags.of([5, 30, 5], [0, 7, 1])
    assert tokens.shape == (2, 2, 3, 3, 4)
    assert tokens.dtype == dtype
    assert tokens.unique().numel() == tokens.numel()
    assert torch.equal(tokens[:, :, 1:2], tags.of([30], [7]))
    origin = tags.origin(float(tokens[1, 0, 1, 2, 3]))
    assert str(origin) == "V of session AE, layer 0, head 2, position 7"
    assert origin.element == 3
    assert tags.origin(float("nan")) is None
    assert tags.origin(-1.0) is None


def test_there_are_no_more_tokens_than_numbers():
    tags = Tags(1, 64, 128, torch.float16)
    with pytest.raises(ValueError, match=f"no numbers for more than {tags.most} tokens"):
        tags.of([0] * (tags.most + 1), range(tags.most + 1))


def test_sessions_have_names_of_letters():
    assert [letter(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_one_look_sees_any_number_that_has_changed():
    pool = Pool(Sizes())
    session = pool.start(5)
    pool.before()
    assert pool.holds_only((), None)
    for memory in pool.storage[0][0][:1], pool.kv.v_layers[1][pool.index(session.table[1][0]), 1, 2, 3:]:
        old = memory.clone()
        memory.fill_(7.0)
        assert not pool.holds_only((), None)
        memory.copy_(old)
        assert pool.holds_only((), None)


# -- inputs -----------------------------------------------------------------------------------------------------------


def changed(change):
    class Changes(Append):
        def __call__(self, sessions, keys, values):
            given = list(sessions)
            super().__call__(sessions, list(keys), list(values))
            change(sessions if len(given) > 1 else given, keys, values)

    return Changes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, k, v: k.pop(), r"inputs: the list `keys`\n *expected: 2 items\n *found: +1 items"),
        (lambda s, k, v: s.reverse(), r"inputs: the list `sessions`\n *expected: A, B, C, D\n *found: +D, C, B, A"),
        (
            lambda s, k, v: v[1].mul_(2),
            r"inputs: values\[1\], row 0, of session A, head 0\n *expected: \[.*\]\n *found",
        ),
        (lambda s, k, v: k[0].unsqueeze_(0), r"inputs: keys\[0\] is another view"),
        (lambda s, k, v: s[0].token_ids.append(3), r"inputs: token_ids of session A\n *expected: \[1"),
        (lambda s, k, v: v[0]._base.fill_(5), r"inputs: (the memory beside the rows of |)(keys|values)\[0\]"),
    ],
)
def test_inputs_are_left_as_they_were(change, says):
    assert re.search(says, told(changed(change), "060"))


def test_a_part_that_scales_the_keys_it_was_given_is_refused():
    class Scales(Append):
        def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
            super().append_token_batch(layer_idx, block_ids_list, key_new.mul_(0.5), value_new)

    assert "the part changed its inputs: keys[0], row 0, of session A" in told(Scales, "060")


# -- sizes ------------------------------------------------------------------------------------------------------------


class FirstSixteen(Append):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions[:16], [k[:16] for k in keys], [v[:16] for v in values])


class NarrowRows(Tables):
    def __call__(self, sessions):
        return super().__call__(sessions).to(torch.int16).to(torch.int32)


class FirstSlots(Append):
    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        if all(info.length < 60 for info in infos):
            super().write(layer_idx, batch_idx, infos, key_new, value_new)


class TiredAfter200(Append):
    calls = 0

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        self.calls += 1
        if self.calls < 200:
            super().write(layer_idx, batch_idx, infos, key_new, value_new)


class FirstHeads(Append):
    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        key_new = key_new.clone()
        key_new[:, 8:] = 0
        super().write(layer_idx, batch_idx, infos, key_new, value_new)


class EightBits(Tables):
    """Keeps a row while the length and the last id, packed with eight bits for the id, are the same."""

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        ids = table[layer_idx]
        table.row_cache = table.row_cache or [(0, torch.zeros(self.max_blocks, dtype=torch.int32)) for _ in table]
        signature, row = table.row_cache[layer_idx]
        packed = (len(ids) << 8) + (ids[-1] - offset if ids else 0)
        if packed != signature:
            row[: len(ids)] = torch.tensor([block_id - offset for block_id in ids], dtype=torch.int32)
            table.row_cache[layer_idx] = packed, row
        return row


@pytest.mark.parametrize(
    ("part", "number", "tried"),
    [
        (EightBits, "036", "blocks whose numbers end in the same bits"),
        (FirstSixteen, "060", "128 sessions in a batch"),
        (NarrowRows, "036", "a pool of 70,000 blocks"),
        (FirstSlots, "060", "blocks of 64 slots, the default"),
        (FirstHeads, "060", "rows of GPT-2: 12 layers, 12 heads of 64"),
        (TiredAfter200, "060", "a life of 270 tokens|160 steps of traffic"),
    ],
)
def test_what_is_right_for_small_sizes_is_tried_with_large_ones(part, number, tried):
    assert told(part, number, "one session alone|sessions of equal length|a fork in") == "nothing"
    assert told(part, number, tried) != "nothing"


# -- interrupts, and pools without room -------------------------------------------------------------------------------


class Swallows(Append):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        try:
            super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        except BaseException:
            self.failed = True
            if not self.failed:
                raise


class Cleans(Append):
    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        try:
            super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
        except BaseException:
            self.failed = True
            raise


def _interrupted(part):
    sizes = Sizes(1, 1, 2, 4, 10, 8)
    oracle = AppendOracle(Learner(part, ("sessions", "keys", "values")), sizes)
    for at in oracle.interrupt(oracle.start(1)).firsts():
        world = oracle.twin()
        world.interrupt(world.start(1), at=at)


def test_an_interrupt_has_to_come_out():
    with pytest.raises(PartIsWrong, match="the part swallows interrupts") as wrong:
        _interrupted(Swallows)
    assert "super().append_token_batch(" in wrong.value.fault.details[0]
    _interrupted(Cleans)


def test_blocks_that_are_kept_in_hand_are_missed_when_there_is_no_room():
    class TakesOneMore(Append):
        def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
            try:
                super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)
            except Exception:
                for ids in block_ids_list:
                    ids[:] = ids[:1]
                raise

    assert told(Append, "060", "a pool that has") == "nothing"
    assert told(TakesOneMore, "060", "a pool that has") != "nothing"
