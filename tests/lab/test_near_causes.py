"""Causes that lie near each other, and what tells one from the other."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rosecourse import lesson
from rosecourse.lab import check
from rosecourse.lab.checks import judging
from rosecourse.lab.checks.diagnosis import Met, diagnosed
from rosecourse.lab.checks.own_work import not_its_own
from rosecourse.lab.checks.size_limits import limit_of
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.world import scenarios as stories
from rosecourse.lab.world import table_scenarios as table_stories
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import Fault, PartIsWrong
from tests.support.wrong_parts import Wrong, damaged, part_of

TAKES = "(self, table: BlockTable, *, layer_idx: int, offset: int)"
GIVEN = "(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)"
BEGINS = "        if table.row_cache is None:"


def near(number, *replaced):
    """The course's part of a lesson with some of its words replaced."""
    return damaged(number, Wrong("near", "", (number,), replaced))


OTHER_NAMES = (TAKES, "(self, table, layer_idx, first)"), (GIVEN, GIVEN.replace("offset=", "first="))
OF_A_SESSION = (
    (TAKES, "(self, session, layer_idx, offset)"),
    (GIVEN, "(session, layer_idx=layer_idx, offset=offset)"),
    (BEGINS, f"        table = session.block_ids_per_layer\n{BEGINS}"),
)
RETURNS_TWO = ("return row\n", "return row, signature\n"), (GIVEN, f"{GIVEN}[0]")


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ((*OTHER_NAMES, ("block_id - offset", "block_id - first")), "cannot be called so: missing a required argument"),
        (OF_A_SESSION, "has no attribute 'block_ids_per_layer'"),
        (RETURNS_TWO, "it returned an object of tuple"),
    ],
)
def test_a_row_is_given_to_whoever_asks(replaced, says):
    trial = judging.trial_of(near("036", *replaced), lesson("036"))
    with pytest.raises(PartIsWrong) as wrong:
        trial.course.world.oracle(trial.learner, stories.SMALL).look_at_asked_methods()
    assert wrong.value.fault.cause is Cause.INTERFACE
    assert says in wrong.value.fault.what


def test_a_part_that_gives_no_rows_to_others_is_refused():
    verdict = check(near("036", *RETURNS_TWO), "036")
    assert verdict.cause is Cause.INTERFACE, verdict


# -- one story, and what it shows -------------------------------------------------------------------------------------


def met(number, story, *replaced):
    """A trial of such a part, and the fault that a story shows."""
    trial = judging.trial_of(near(number, *replaced), lesson(number))
    oracle = trial.course.world.oracle(trial.learner, stories.SMALL)
    with pytest.raises(PartIsWrong) as wrong:
        story(oracle)
    return trial, Met(stories.Scenario("", story), wrong.value.fault, oracle.forked, bool(oracle.freed))


TAKE = "self.kv.allocate_block(layer_idx, start)"
NEW = "                info = self.kv.info(block_ids[-1])\n"
BLOCKS = "index_tensor([info.block_index for info in infos], device)"
SLOTS = "index_tensor([info.length for info in infos], device)"
WRITE = "            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)\n"
IN_TURN = "            both = key_new.new_empty(0).new_tensor([*key_new.tolist(), *value_new.tolist()])\n"
FILL = "row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]"
AT_THE_END = "row.numpy()[:] = [0] * (len(row) - len(ids)) + [block_id - offset for block_id in ids]"
APPENDED = "layer_idx, block_ids_list"
KEPT = "table.row_cache[layer_idx]"


@pytest.mark.parametrize(
    ("number", "story", "replaced", "cause", "says"),
    [
        (
            "038",
            stories.two_families,
            (("or info.owners > 1", "or (info.owners > 1 and info.length < self.kv.block_size - 1)"),),
            Cause.COW_MISSED,
            "copied before one of its owners writes",
        ),
        (
            "059",
            stories.in_step,
            ((TAKE, f"block_ids_list[0][-1] if b else {TAKE}"),),
            Cause.BOOKS_WRONG,
            "several lists",
        ),
        (
            "038",
            stories.alone,
            (("session.block_ids_per_layer[layer_idx]", "session.block_ids_per_layer[0]"),),
            Cause.WRONG_LAYER,
            "the lists of layer 0 were given for that one",
        ),
        (
            "059",
            stories.alone,
            ((NEW, f"{NEW}                self.kv.k_layers[layer_idx][1] = 0\n"),),
            Cause.OLD_TOKENS_CHANGED,
            "block index",
        ),
        (
            "038",
            stories.from_nothing,
            ((WRITE, f"{IN_TURN}            key_new, value_new = both[0::2], both[1::2]\n{WRITE}"),),
            Cause.K_V_SWAPPED,
            "K and V are swapped",
        ),
        (
            "038",
            stories.in_step,
            ((BLOCKS, BLOCKS.replace("info.block_index", "infos[0].block_index")),),
            Cause.WRONG_BLOCK,
            "whose list does it come from",
        ),
        (
            "038",
            stories.around_a_boundary,
            ((f"({APPENDED}[b]", f"({APPENDED}[b - 1 if b == 1 else b]"),),
            Cause.WRONG_SESSION,
            "the token of session B lies in it",
        ),
        (
            "036",
            stories.around_a_boundary,
            ((FILL, FILL.replace("- offset", "- offset + 1")),),
            Cause.WRONG_BLOCK,
            "nobody's",
        ),
        ("036", stories.alone, ((FILL, AT_THE_END),), Cause.ROW_SHAPE, "not at the row's beginning"),
        ("036", stories.alone, ((KEPT, KEPT.replace("idx", "idx // 2")),), Cause.WRONG_LAYER, "row of layer 0"),
    ],
)
def test_a_story_tells_causes_apart(number, story, replaced, cause, says):
    fault = met(number, story, *replaced)[1].fault
    assert fault.cause is cause, fault
    assert says in fault.reason


def test_a_place_of_which_nothing_is_right_has_two_causes():
    trial, found = met(
        "038",
        stories.from_nothing,
        (f"blk_t = {BLOCKS}", f"blk_t = {SLOTS}"),
        (f"pos_t = {SLOTS}", "pos_t = 0 * blk_t"),
    )
    [told] = diagnosed(trial, [found])
    assert (told.cause, told.or_else) == (Cause.WRONG_SLOT, Cause.WRONG_BLOCK)
    verdict = Verdict("X", "038", (told,))
    assert verdict.or_else is Cause.WRONG_BLOCK
    assert "and the wrong slot in it; or the wrong block." in str(verdict).splitlines()[0]


def test_a_full_block_that_raises_has_two_causes():
    fault = met("059", stories.alone, ("if info is None or info.length == self.kv.block_size:", "if info is None:"))[
        1
    ].fault
    assert (fault.cause, fault.or_else) == (Cause.RAISES, Cause.ROLLOVER_MISSED)


# -- experiments ------------------------------------------------------------------------------------------------------


TAKEN_FROM = "k_layer[blk_t, :, slots] = key_new"
FIRST_EIGHT = FILL.replace("start:]", "start:8]").replace("len(ids)]", "min(len(ids), 8)]")
AT_MOST_FOUR = "layer_idx = min(layer_idx, 3)\n        "
KEPT_BY_THE_SESSION = (
    (TAKES, f"{TAKES[:-1]}, session=None)"),
    (GIVEN, f"{GIVEN[:-1]}, session=session)"),
    (BEGINS, f"        table.row_cache = vars(self).get(id(session))\n{BEGINS}"),
    ("        return row\n", "        vars(self)[id(session)] = table.row_cache\n        return row\n"),
)
PACKED = "key_new.as_strided(key_new.shape, (key_new[0].numel(), key_new.shape[2], 1))"


def test_rows_that_are_right_one_behind_the_other_are_read_wrongly():
    trial, found = met("060", stories.in_step, (TAKEN_FROM, f"{TAKEN_FROM[:-7]}{PACKED}"))
    told = diagnosed(trial, [replace(found, fault=replace(found.fault, cause=Cause.WRONG_SESSION))])[0]
    assert told.cause is Cause.VALUES_CHANGED
    assert "`stride(0)` says how far" in told.reason


def test_what_is_wrong_without_siblings_explains_what_is_wrong_of_copies():
    half = Met(stories.COMMON[0], Fault("", cause=Cause.HALF_WRITTEN))
    copy = Met(stories.COMMON[1], Fault("", cause=Cause.COW_PARTIAL), forked=True)
    trial = judging.trial_of(near("038", ("value_new[b])", "key_new[b])")), lesson("038"))
    assert diagnosed(trial, [half, copy])[0].cause is Cause.HALF_WRITTEN
    assert diagnosed(trial, [copy])[0].cause is Cause.COW_PARTIAL


def test_a_row_that_a_session_finds_again_has_two_causes():
    trial, found = met("036", table_stories.computed_again, *KEPT_BY_THE_SESSION)
    told = diagnosed(trial, [found] * 4)[0]
    assert (told.cause, told.or_else) == (Cause.ROW_STALE, Cause.STATE_KEPT)
    assert diagnosed(trial, [found])[0].or_else is None  # by chance


@pytest.mark.parametrize(
    ("number", "large", "replaced", "says"),
    [
        ("036", {"max_seq_len": 64}, ((FILL, FIRST_EIGHT),), "up to 8 blocks of a session"),
        ("038", {"layers": 12}, (("k_layer, v_layer =", f"{AT_MOST_FOUR}k_layer, v_layer ="),), "up to 4 layers"),
    ],
)
def test_limits_of_layers_and_of_the_length_of_a_row(number, large, replaced, says):
    trial = judging.trial_of(near(number, *replaced), lesson(number))
    assert says in limit_of(trial, [replace(stories.SMALL, **large)], Fault("", cause=Cause.WRONG_LAYER))


def test_a_buffer_that_is_cleared_when_it_has_been_sent_is_reused():
    sent = "            return self.buffer.to_device()\n"
    cleared = (
        "            sent = self.buffer.to_device()\n            block_tables_cpu.zero_()\n            return sent\n"
    )
    trial, found = met("036", stories.alone, (sent, cleared))
    assert found.fault.cause is Cause.NOTHING_WRITTEN
    assert diagnosed(trial, [found])[0].cause is Cause.BUFFER_REUSED


# -- own work ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "is_the_courses"), [("a cell", False), (None, True)])
def test_the_same_lines_in_a_file_of_their_own_are_ones_own(file, is_the_courses):
    part = part_of("038")
    code = part.__call__.__code__
    step = SimpleNamespace(codes={code.replace(co_filename=file or code.co_filename)}, kernels=())
    assert bool(not_its_own(judging.trial_of(part, lesson("038")), [step])) == is_the_courses
