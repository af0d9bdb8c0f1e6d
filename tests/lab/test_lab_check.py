"""`check` lets every right part pass, whoever wrote it, and says what it is that a part lacks."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from rosecourse import LESSONS, LessonError, lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.own_process import run_apart
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.lab.course import COURSES
from rosecourse.lab.world.fault import Fault
from tests.support.right_parts import RIGHT, IndexPut, PlannedKernels, delegating
from tests.support.wrong_parts import Wrong, damaged, part_of
from tests.support.wrong_parts_partial import PARTIAL

GOALS = list(COURSES)
needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


def with_marks(number, *more):
    return pytest.param(number, *more, marks=needs_triton if lesson(number).kernels else ())


def rungs_of(goal):
    """The first rung with each version of the part that a lesson replaces, and that is called in the same way."""
    course, parts = COURSES[goal], lesson(goal).after
    alike = [
        rung for rung in LESSONS if rung.after.cache is parts.cache and rung.after.step.stages == parts.step.stages
    ]
    if course.exercise.ends_as:  # the lesson's own part does otherwise on a CPU
        return {course.exercise.ends_as: goal}
    return {course.part(rung.after): rung.number for rung in reversed(alike)}


def is_course(verdict):
    """Whether all is there, and nothing is the learner's own."""
    return verdict.correct and not verdict.missing and not verdict.unchecked and bool(verdict.not_own)


@pytest.mark.grid(shows=lambda goal, part, number: {goal})
@pytest.mark.parametrize(
    ("goal", "part", "number"),
    [with_marks(goal, part, number) for goal in GOALS for part, number in rungs_of(goal).items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rung_passes_its_lesson_and_those_before_and_lacks_the_idea_of_those_after(goal, part, number):
    verdict = check(part, goal)
    assert verdict.correct, verdict
    assert not verdict.passed
    assert is_course(verdict) == (number >= goal), verdict
    if verdict.missing:
        assert "correct, but without the idea of the lesson" in str(verdict)
        assert "; the course's part of lesson" in str(verdict)


@pytest.mark.grid(shows=lambda number, part: {number})
@pytest.mark.parametrize(
    ("number", "part"), [with_marks(number, part) for number in RIGHT for part in RIGHT[number]], ids=str
)
def test_parts_written_otherwise_pass(number, part):
    verdict = check(part, number)
    assert verdict.passed, verdict
    assert "✓" in str(verdict)


@pytest.mark.parametrize("number", ["036", "059"])
def test_a_part_may_have_another_do_its_work(number):
    verdict = check(delegating(RIGHT[number][0]), number)
    assert verdict.passed, verdict


class Inherits(part_of("038")):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, keys, values)


class InheritsWhatWasThere(part_of("059")):
    write = part_of("060").write


class OfAText:
    def __new__(cls, model, kv, config):
        names = dict(vars(sys.modules[part_of("038").__module__]))
        exec(inspect.getsource(part_of("038")), names)
        return names["KVAppend"](model, kv, config)


@pytest.mark.parametrize(
    ("part", "number", "functions"),
    [
        (part_of("036"), "036", ("__call__", "get_paged_block_table_row_cpu")),
        (Inherits, "038", ("__call__", "append_token_batch", "write")),
        (delegating(part_of("060")), "038", ("__call__", "append_token_batch", "write")),
        (OfAText, "038", ("__call__", "append_token_batch", "write")),
        (InheritsWhatWasThere, "060", ("write",)),
    ],
)
def test_the_work_of_the_course_is_not_the_learners(part, number, functions):
    verdict = check(part, number)
    assert is_course(verdict), verdict
    assert not verdict.passed
    ran = ", ".join(f"`{part_of(number).__name__}.{name}`" for name in functions)
    assert str(verdict).startswith(f"✗ {part.__name__}, lesson {number}: correct, with the course's own work inside")
    assert f"  Not your own: the course's {ran} did the work" in str(verdict)


@needs_triton
def test_the_kernel_of_the_course_is_not_the_learners():
    verdict = check(PlannedKernels, "061")
    assert is_course(verdict), verdict
    assert "the course's `kv_append_triton_full_batch`, the kernel `_kv_append_full_batch_kernel` did the" in str(
        verdict
    )


def test_what_is_there_before_the_lesson_may_be_used():
    class Mine(part_of("038")):
        def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
            for block_ids in block_ids_list:
                if block_ids and self.kv.info(block_ids[-1]).length < self.kv.block_size:
                    continue
                block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))
            super().append_token_batch(layer_idx, block_ids_list, key_new, value_new)

    verdict = check(Mine, "059")
    assert verdict.passed, verdict


def test_what_is_counted_is_observed():
    told = str(check(lesson("036").after.kv_append, "038"))
    assert "still 96 append_token calls in a step of 16 sessions inside their blocks" in told
    assert "makes none" in told


def test_a_verdict_is_the_same_each_time_and_shows_the_blocks():
    class SwapsThem(part_of("060")):
        def write(self, layer_idx, batch_idx, infos, key_new, value_new):
            super().write(layer_idx, batch_idx, infos, value_new, key_new)

    first, second = (check(SwapsThem, "060") for _ in range(2))
    assert str(first) == repr(first) == str(second)
    assert first._repr_html_() == second._repr_html_()
    assert "<svg" in first._repr_html_()
    assert "Wrong:    position 1 of session A in layer 0 holds the V of session A, layer 0, head 0, position 1" in str(
        first
    )
    assert "K and V are swapped" in str(first)
    assert not first.passed
    assert not first.correct


# -- what is no part at all -------------------------------------------------------------------------------------------


class NoInit:
    def __call__(self, sessions, keys, values):
        pass


class NoCall:
    def __init__(self, model, kv, config):
        pass


class TwoArguments(NoCall):
    def __call__(self, sessions, keys):
        pass


class DoesNothing(NoCall):
    def __call__(self, sessions, keys, values):
        pass


class DividesByZero(NoCall):
    def __call__(self, sessions, keys, values):
        return self.mean(sessions)

    def mean(self, sessions):
        return 1 / (len(sessions) - len(sessions))


class Exits(NoCall):
    def __call__(self, sessions, keys, values):
        sys.exit(3)


class AsksForMore(NoCall):
    def __init__(self, model, kv, config):
        self.size = config.page_size


class Spoils(NoCall):
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for info in self.kv.blocks_in_use.values():
            info.length = None


@pytest.mark.grid
@pytest.mark.parametrize(
    ("part", "says"),
    [
        (NoInit, "NoInit.__init__ cannot be called: too many positional arguments; define `def __init__(self, model"),
        (NoCall, "an object of NoCall cannot be called: define `def __call__(self, sessions, keys, values):`"),
        (TwoArguments, "TwoArguments.__call__ cannot be called: too many positional arguments; define"),
        (DoesNothing, "nothing was written for session A in this layer: it was left out"),
        (DividesByZero, ", in mean: return 1 / (len(sessions) - len(sessions))"),
        (Exits, "the part raised SystemExit: 3"),
        (AsksForMore, "raised AttributeError: 'EngineConfig' object has no attribute 'page_size'"),
        (Spoils, "after the part the pool cannot be used any more"),
        (IndexPut(None, None, None), "check wants the class itself: check(MyPart, '038'), not an object of IndexPut"),
        ("038", "check wants the class itself: check(MyPart, '038'), not an object of str"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_a_part_is_told_in_plain_words(part, says):
    verdict = check(part, "038")
    assert says in str(verdict), verdict
    assert not verdict.passed
    assert not verdict.correct
    assert "rosecourse/lab" not in str(verdict)


class NeverDone(NoCall):
    def __call__(self, sessions, keys, values):
        while sessions:
            pass


class HoldsBack(NoCall):
    def __call__(self, sessions, keys, values):
        for _ in iter(int, 1):
            try:
                self.again = True
            except Exception:
                continue


@pytest.mark.parametrize(
    ("part", "line"), [(NeverDone, "pass|while sessions:"), (HoldsBack, "for _ in|try:|self.again|except|continue")]
)
def test_a_part_that_does_not_end_is_ended(part, line, monkeypatch):
    monkeypatch.setattr(checking, "run_apart", partial(run_apart, silence=1.0))
    verdict = check(part, "038")
    said = rf"the part was still at work after 1 seconds\n *in line \d+, in __call__: ({line}).*\n  Perhaps:  a loop"
    assert re.search(said, str(verdict)), verdict
    assert len(verdict.faults) == 1


def test_the_same_fault_is_told_once():
    told = str(check(DividesByZero, "038"))
    assert told.count("division by zero") == 1

    class SwapsThem(part_of("060")):
        def write(self, layer_idx, batch_idx, infos, key_new, value_new):
            super().write(layer_idx, batch_idx, infos, value_new, key_new)

    told = str(check(SwapsThem, "060"))
    assert told.count("holds the V of") == 1
    assert "  Also in:  sessions without any block yet (step 1); lengths around" in told
    assert "Also wrong" not in told


def test_the_same_fault_in_other_sessions_is_told_once():
    verdict = check(damaged("038", Wrong("no copy", "", ("038",), ((" or info.owners > 1", ""),))), "038")
    assert len(verdict.faults) == 5
    assert len({fault.what for fault in verdict.faults}) == 5  # other positions, blocks and sessions
    told = str(verdict).splitlines()
    assert [line[:11].strip() for line in told[1:]] == ["Tried:", "Wrong:", "Perhaps:", "Also in:"]
    assert told[-1].count("(step 1)") == 4
    assert verdict._repr_html_().count("was to go into a copy") == 1


def test_another_fault_has_a_line_of_its_own():
    one, other = Fault("session A: 3 blocks", tried="first"), Fault("session B: 4 blocks", tried="second")
    another = replace(other, what="session A: no blocks", tried="third")
    told = str(Verdict("Mine", "038", (one, other, another, replace(another, tried="fourth"))))
    assert told.splitlines()[3:] == [
        "  Also in:  second",
        "  Also wrong:",
        "    third: session A: no blocks. Also in: fourth",
    ]


def test_what_was_counted_is_one_line():
    told = str(check(IndexPut, "038"))
    assert "  not to be seen on a CPU: a pinned buffer that is written again while a copy from it is" in told
    assert told.endswith(
        "counted in 11 kinds of steps, never more than the lesson allows: append_token calls, torch operations, "
        "stores of K and V"
    )
    assert "kinds of steps" not in str(check(lesson("038").before.kv_append, "038"))


def test_an_idea_that_is_there_in_some_steps_is_not_said_to_be_missing():
    partly = "correct, but not yet with all of the lesson's idea"
    for wrong in PARTIAL[3], PARTIAL[5]:  # in the first layer alone: never as few; for even batches: sometimes
        assert (partly in str(check(damaged("038", wrong), "038"))) == ("even" in wrong.fault)
    assert partly not in str(check(lesson("060").before.kv_append, "060"))


def test_tables_where_an_append_belongs():
    assert "def __call__(self, sessions, keys, values)" in str(check(part_of("036"), "038"))
    assert "def __call__(self, sessions)" in str(check(part_of("038"), "036"))


def test_what_a_part_prints_is_held_back(capsys):
    class Talks(IndexPut):
        def __call__(self, sessions, keys, values):
            print("appending", len(sessions))
            super().__call__(sessions, keys, values)

    verdict = check(Talks, "038")
    assert verdict.passed
    assert "Note: the part prints; " in str(verdict)
    assert "the first: appending 1" in str(verdict)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("number", "says"), [("035", "replaces no part: give one of 036, 038"), ("042", "no lesson '042'")]
)
def test_a_lesson_without_a_part_is_refused(number, says):
    with pytest.raises(LessonError, match=says):
        check(DoesNothing, number)


@needs_triton
def test_where_kernels_cannot_run_lesson_061_is_not_passed():
    code = (
        "from rosecourse.lab import check; import rosecourse; "
        "v = check(rosecourse.lesson('061').after.kv_append, '061'); print(v); "
    )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", code + "print(v.correct, v.passed)"]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "Not checked: the kernels. Triton cannot launch them here" in out
    assert re.search("counted in 23 kinds of steps, .*: copies of rows of K and V, .*index tensors built", out)
    assert out.endswith("True False\n")
