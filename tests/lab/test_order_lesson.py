"""Lesson 071's kernel is watched: right ones pass, whoever wrote them; one wrong moment is refused with its cause."""

import pytest
import torch

from rosecourse import InferenceEngine
from rosecourse.kernels import INTERPRETED, TRITON_AVAILABLE
from rosecourse.lab.course.l071 import Belt, words
from rosecourse.lab.course.scenes import side_by_side, start, steps
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.ops_models import ModelSizes
from rosecourse.lab.world.order_oracle import OrderOracle
from rosecourse.lab.world.worlds import KERNELS_IN_A_ROW as WORLD
from rosecourse.lab.world.written_memory import Places, Written, span_of
from tests.support.cells import assert_untouched_is_right, command_on_solution, solution_of
from tests.support.verdicts import assert_right_but_costly, judged

if TRITON_AVAILABLE:
    from tests.support.order_parts import RIGHT, Masked
    from tests.support.orders_without_idea import WITHOUT_THE_IDEA, NotEarly
    from tests.support.wrong_orders import WRONG_ORDERS
else:
    RIGHT, WRONG_ORDERS, WITHOUT_THE_IDEA = (), {}, {}

interpreted = pytest.mark.skipif(not INTERPRETED, reason="the order in a kernel is seen in Triton's interpreter")


def by_name(part):
    return part.__name__


@interpreted
@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=by_name)
def test_a_kernel_in_another_style_passes(part):
    verdict = judged(part, "071")
    assert verdict.passed, verdict


@interpreted
@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WRONG_ORDERS, ids=by_name)
def test_a_wrong_kernel_is_refused_with_its_cause(part):
    assert not judged(part, "071").correct


@interpreted
def test_a_wrong_sum_is_shown_from_its_first_wrong_number_on():
    """The products that are made of it are right, and are not named."""

    class SecondHalf(Masked):
        def linear_add(self, h, linear, x):
            super().linear_add(h, linear, x)[1, 3:] += 0.5
            return x

    oracle = OrderOracle(Learner(SecondHalf, WORLD.called_with), ModelSizes(layers=1))
    with pytest.raises(PartIsWrong) as wrong:
        oracle.step(*[oracle.start(n) for n in (3, 1)])
    fault = wrong.value.fault
    assert fault.what == "`linear_add` of layer 0, attn_c_proj is not right for session B (row 1 of 2)"
    assert fault.details[0].endswith("from number 3 of the row on")


@interpreted
@pytest.mark.parametrize("method", ["embed", "norm_linear", "norm_linear_gelu", "logits"])
def test_any_other_operation_is_named_where_it_is_wrong(method):
    class Scales(Masked):
        pass

    setattr(Scales, method, lambda self, *given: getattr(Masked, method)(self, *given) * 1.5)
    oracle = OrderOracle(Learner(Scales, WORLD.called_with), ModelSizes(layers=1))
    with pytest.raises(PartIsWrong, match=rf"^`{method}`.* is not right for session"):
        oracle.step(*[oracle.start(n) for n in (3, 1)])


@interpreted
@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=by_name)
def test_what_waits_for_more_than_it_must_is_told(part):
    assert_right_but_costly(judged(part, "071"), WITHOUT_THE_IDEA[part])


@interpreted
def test_a_kernel_that_cannot_start_early_is_told_that_alone():
    said = str(judged(NotEarly, "071"))
    assert "without `launch_pdl=True`" in said
    assert "only after its wait" not in said


@interpreted
def test_the_untouched_exercise_is_right_and_has_the_idea_not_yet():
    said = assert_untouched_is_right("071")
    assert "8 times a kernel asks for weights or a bias only after its wait in a step of 3 sessions" in said


@interpreted
def test_the_command_takes_the_solution_and_says_what_was_tried(tmp_path, capsys, monkeypatch, small_model):
    said = command_on_solution("071", tmp_path, capsys)
    assert f"{len(WORLD.scenarios)} stories" in said
    assert "not to be seen on a CPU: how long a kernel would wait" in said


# -- what is watched --------------------------------------------------------------------------------------------------


@interpreted
def test_what_is_seen_of_a_step():
    oracle = OrderOracle(Learner(Masked, WORLD.called_with), ModelSizes(layers=2))
    batch = [oracle.start(n) for n in (3, 1)]
    oracle.step(*batch)
    first, *_ = launched = oracle.ordered.launched
    assert [one.kernel for one in launched] == ["masked"] * 4
    assert [program.number for program in first.programs] == [(0, 0, 0), (1, 0, 0)]
    assert [program.stored for program in first.programs] == [True, False]
    assert [(program.waits, program.starts) for program in first.programs] == [(1, 1)] * 2
    assert first.programs[0].early == {"bias_ptr": 8, "w_ptr": 64}
    assert first.programs[0].late == {}  # what is read then was made in this step
    before = oracle.ordered.seen()
    assert (before.plain, before.held, before.late, before.silent, before.waits, before.starts) == (0, 0, (), 0, 0, 0)
    oracle.step(*batch)
    assert oracle.ordered.seen() == before
    assert len(oracle.ordered.launched) == 4


def test_the_newest_is_what_the_last_operation_has_written():
    written = Written()
    with written:
        a = torch.ones(4)
        b = a + 1
        c = b.view(2, 2)
        a.mul_(2)
    addresses = torch.tensor([a.data_ptr(), a.data_ptr() + 12, b.data_ptr(), c.data_ptr()]).numpy().astype("uint64")
    assert written.newest.has(addresses).tolist() == [True, True, False, False]
    assert written.step.has(addresses).all()
    written.begin()
    assert not written.step.has(addresses).any()
    assert written.newest.has(addresses[:1]).all()


def test_places_are_tensors_and_addresses():
    places, rows = Places(), torch.zeros(4, 8)[:, 2:4]
    places.add_tensor(rows)
    start, end = span_of(rows)
    assert end - start == (3 * 8 + 2) * 4
    places.add_addresses(torch.tensor([8]).numpy().astype("uint64"))
    wanted = torch.tensor([8, 12, start, end - 4, end]).numpy().astype("uint64")
    assert places.has(wanted).tolist() == [True, False, True, True, False]
    assert span_of(torch.zeros(0)) == (torch.zeros(0).data_ptr(),) * 2


@interpreted
def test_the_solution_reads_nothing_else_before_its_wait():
    oracle = OrderOracle(Learner(solution_of("071"), WORLD.called_with), ModelSizes(layers=1))
    oracle.step(oracle.start(2))
    early = {name for one in oracle.ordered.launched for program in one.programs for name in program.early}
    assert early == {"w_ptr", "bias_ptr"}


# -- the hunt ---------------------------------------------------------------------------------------------------------


def test_the_hunts_newcomer_is_wrong_from_its_first_step_on(model):
    found = hunt("071")
    wrong = [
        {name for name in ours if ours[name].token_ids != theirs[name].token_ids}
        for _, _, ours, _, theirs in side_by_side(found, model)
    ]
    assert wrong == [set()] * 7 + [{"D"}] * 6
    assert f"At moment {wrong.index({'D'})} session D" in found.bug.explanation


def completions(model, parts, leave):
    """Of two that start together, and of a third one that joins when one of them leaves, or when none does."""
    engine = InferenceEngine(model, hunt("071").config, parts)
    sessions = start(engine, {"A": words(1, 12), "B": words(2, 7)})
    list(steps(engine, sessions, 2))
    if leave:
        engine.free(sessions.pop("A"))
    sessions |= start(engine, {"D": words(6, 9)})
    list(steps(engine, sessions, 5))
    return {name: session.completion_ids for name, session in sessions.items()}


@pytest.mark.parametrize("leave", [True, False])
def test_the_hunts_fault_shows_only_where_the_batch_grows(model, leave):
    found = hunt("071")
    right, broken = (completions(model, parts, leave) for parts in (found.right, found.broken))
    assert (right == broken) is leave
    assert completions(model, found.right.with_(forward=found.mended), leave) == right


def test_without_an_early_start_the_hunts_part_is_right(model, monkeypatch):
    """As the symptom says: where each kernel waits at its first line."""
    found = hunt("071")
    monkeypatch.setattr(Belt, "put", lambda belt, kernel: list(kernel))
    assert completions(model, found.broken, False) == completions(model, found.right, False)
