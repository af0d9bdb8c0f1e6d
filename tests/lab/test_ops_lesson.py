"""Lesson 069's operations are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from rosecourse import InferenceEngine
from rosecourse.kernels.reference import add_norm
from rosecourse.lab import check
from rosecourse.lab.course.scenes import key_at, side_by_side
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.ops_kept import copies_kept, tensors_kept
from rosecourse.lab.world.ops_log import METHODS, OpsLog
from rosecourse.lab.world.ops_models import ModelSizes
from rosecourse.lab.world.ops_oracle import OpsOracle
from rosecourse.lab.world.worlds import OPS as WORLD
from rosecourse.models.ops import Ops
from tests.support.cells import assert_untouched_is_right, command_on_solution
from tests.support.costly_ops import WITHOUT_THE_IDEA
from tests.support.ops_parts import RIGHT, Base, Pairs
from tests.support.verdicts import assert_right_but_costly, judged
from tests.support.wrong_products import WRONG_PRODUCTS
from tests.support.wrong_sums import WRONG_SUMS, AddsTwice, OnlyOneWaits

WRONG = WRONG_SUMS + WRONG_PRODUCTS


def oracle_of(part, **sizes):
    return OpsOracle(Learner(part, WORLD.called_with), ModelSizes(**sizes))


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "069")
    assert verdict.passed, verdict


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_wrong_operations_are_refused_with_their_cause(part):
    assert not judged(part, "069").correct


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_costs_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(judged(part, "069"), WITHOUT_THE_IDEA[part])


def test_the_untouched_exercise_is_right_and_has_the_idea_not_yet():
    assert_untouched_is_right("069")


def test_a_verdict_says_what_was_tried():
    said = str(check(Pairs, "069"))
    assert f"{len(WORLD.scenarios)} stories" in said


def test_the_command_takes_operations(tmp_path, capsys, monkeypatch, small_model):
    command_on_solution("069", tmp_path, capsys)


def test_a_fault_says_which_operation_of_which_layer_and_whose_row():
    oracle = oracle_of(AddsTwice)
    batch = [oracle.start(3), oracle.start(1)]
    with pytest.raises(PartIsWrong) as wrong:
        oracle.step(*batch)
    told = wrong.value.fault
    assert told.what.startswith("`norm_linear_gelu` of layer 0, ln_2 and mlp_c_fc is not right for session ")
    assert [line.split(":")[0] for line in told.details] == ["expected", "found", "because"]


# -- what is looked at ------------------------------------------------------------------------------------------------


def test_the_protocol_the_world_and_the_log_name_the_same_methods():
    assert tuple(name for name in vars(Ops) if not name.startswith("_")) == METHODS == tuple(WORLD.methods)


def test_the_stories_have_models_and_batches_of_all_kinds():
    seen = {"batches": set(), "vocabularies": set(), "dtypes": set(), "layers": set(), "epsilons": set()}

    class Notes(Base):
        def embed(self, token_ids, positions, wte, wpe):
            seen["batches"].add(len(token_ids))
            seen["vocabularies"].add(len(wte))
            seen["dtypes"].add(wte.dtype)
            return super().embed(token_ids, positions, wte, wpe)

        def norm(self, x, norm):
            seen["epsilons"].add(norm.eps)
            return super().norm(x, norm)

    for scenario in WORLD.scenarios:
        seen["layers"].add(scenario.sizes.layers)
        scenario.story(OpsOracle(Learner(Notes, WORLD.called_with), scenario.sizes))
    assert {1, 2, 3, 4, 9} <= seen["batches"]
    assert {1, 97, 130, 255, 256, 257, 700} <= seen["vocabularies"]
    assert seen["dtypes"] == {torch.float32, torch.float16}
    assert {1, 2, 3} <= seen["layers"]
    assert {1e-5, 0.1} <= seen["epsilons"]


def test_a_sum_that_is_lost_only_where_two_wait_is_right_in_gpt2():
    """Only a model that adds twice before it normalises shows it."""
    oracle = oracle_of(OnlyOneWaits)
    oracle.step(oracle.start(3))
    scenario = next(s for s in WORLD.scenarios if "and then add twice" in s.name)
    with pytest.raises(PartIsWrong):
        scenario.story(OpsOracle(Learner(OnlyOneWaits, WORLD.called_with), scenario.sizes))


class Writes(Base):
    """Right but for a number that it changes in what it was given, or has returned."""

    change: staticmethod

    def logits(self, x, norm, wte):
        logits = super().logits(x, norm, wte)
        self.change(self, norm, wte)
        return logits


def a_word(part, norm, wte):
    wte[5, 0] += 1


def a_position(part, norm, wte):
    part.model.wpe[0, 0] = 7


def a_norm(part, norm, wte):
    norm.bias[-1] *= 2


def a_layer(part, norm, wte):
    part.model.layers[1].attn_c_proj.weight[0, 0] += 1


def the_models_own(part, norm, wte):
    part.model.wte = wte.clone()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (a_word, "`logits` changes wte.weight"),
        (a_position, "`logits` changes wpe.weight"),
        (a_norm, "`logits` changes ln_f.bias"),
        (a_layer, "`logits` changes h.1.attn.c_proj.weight"),
        (the_models_own, "`logits` changes wte"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_is_changed_is_found(change, says):
    oracle = oracle_of(type("Changes", (Writes,), {"change": staticmethod(change)}))
    with pytest.raises(PartIsWrong) as wrong:
        oracle.step(oracle.start(3))
    assert wrong.value.fault.what == says
    assert wrong.value.fault.cause is Cause.INPUTS_CHANGED


def test_what_a_part_keeps_is_counted():
    oracle = oracle_of(Base)
    a = oracle.start(3)
    assert copies_kept(oracle.part, oracle.model) == 0
    oracle.step(a)
    assert copies_kept(oracle.part, oracle.model) == 1  # the padded one; the model's own is none
    before = tensors_kept(oracle.part)
    oracle.part.more = {"a": [torch.zeros(1), (torch.zeros(2),)]}
    assert tensors_kept(oracle.part) == before + 2
    assert copies_kept(oracle.part, oracle.model) == 1


# -- what is counted --------------------------------------------------------------------------------------------------


def counted(function):
    log, given = OpsLog(), (torch.ones(2, 4), torch.ones(2, 4), torch.ones(4))
    with torch.inference_mode(), log.calling("logits"):
        function(*given)
    return log.operations["logits"], log.columns


@pytest.mark.parametrize(
    ("function", "operations", "columns"),
    [
        (lambda x, y, w: add_norm(x, y, w, w, 0.1), 1, 0),
        (lambda x, y, w: [add_norm(x, y, w, w, 0.1) for _ in range(3)], 3, 0),
        (lambda x, y, w: F.layer_norm(x + y, (4,), w, w), 2, 0),
        (lambda x, y, w: torch.addmm(w[:2], x, y.T), 1, 2),
        (lambda x, y, w: x @ torch.ones(4, 512), 2, 0),
        (lambda x, y, w: F.linear(x, y, w[:2]), 1, 2),
        (lambda x, y, w: x.view(-1)[2:].unsqueeze(0).T, 0, 0),
        (lambda x, y, w: x.add_(y).contiguous().reshape(8), 1, 0),
        (lambda x, y, w: x.T.contiguous(), 1, 0),
    ],
)
def test_operations_are_those_that_move_data_and_add_norm_is_one(function, operations, columns):
    assert counted(function) == (operations, columns)


def test_the_code_of_add_norm_with_other_functions_in_it_is_no_add_norm():
    class Many:
        @staticmethod
        def layer_norm(x, shape, weight, bias, eps):
            return F.layer_norm(x + x, shape, weight, bias, eps)

    mine = types.FunctionType(add_norm.__code__, {"F": Many})
    assert counted(lambda x, y, w: mine(x, y, w, w, 0.1))[0] == 3


@pytest.mark.parametrize(
    "delta",
    [torch.ones(4), torch.ones(1, 4), torch.ones(1, 4).expand(2, 4), torch.ones(4, 2).T, torch.ones(2, 4).half()],
    ids=["a row", "one row", "expanded", "transposed", "half"],
)
def test_add_norm_is_called_with_what_its_kernel_can_read(delta):
    with pytest.raises(PartIsWrong, match="`add_norm` is called with a delta") as wrong:
        counted(lambda x, y, w: add_norm(x, delta, w, w, 0.1))
    assert wrong.value.fault.cause is Cause.OUTSIDE


# -- the hunt ---------------------------------------------------------------------------------------------------------


def completions(model, parts, block_size):
    config = replace(hunt("069").config, block_size=block_size)
    *_, sessions = hunt("069").scene(InferenceEngine(model, config, parts))
    return {name: session.completion_ids for name, session in sessions.items()}


@pytest.mark.parametrize(("block_size", "wrong"), [(4, set("ABCD")), (8, {"C"}), (16, set()), (32, set())])
def test_the_hunts_attention_is_right_with_blocks_as_large_as_its_tile(model, block_size, wrong):
    found = hunt("069")
    right, broken, mended = (
        completions(model, parts, block_size)
        for parts in (found.right, found.broken, found.right.with_(forward=found.mended))
    )
    assert {name for name in right if right[name] != broken[name]} == wrong
    assert mended == right


def test_the_hunts_cache_is_in_order_until_the_tokens_are_not(model):
    found = hunt("069")
    moments = []
    for _, right, ours, broken, theirs in side_by_side(found, model):
        for name, session in ours.items():
            if session.token_ids == theirs[name].token_ids:
                for position in range(session.num_cached_tokens):
                    keys = key_at(right.kv, session, position), key_at(broken.kv, theirs[name], position)
                    assert torch.allclose(*keys, atol=1e-5)
        moments.append({name for name in ours if ours[name].token_ids != theirs[name].token_ids})
    first = moments.index({"C"})
    assert not any(moments[:first])
    assert moments[first:] == [{"C"}] * (len(moments) - first)


def test_the_hunts_colleague_has_written_another_part_than_the_learner(model):
    found = hunt("069")
    _, broken = found.engines(model)
    moments = found.scene(broken)
    next(moments)
    for sessions in moments:
        rows = broken.decode_step.runner.work.forward.rows.tolist()
        tables = [list(session.table) for session in sessions.values()]
        assert [row[: len(table)] for row, table in zip(rows, tables, strict=True)] == tables
    assert found.replaces == "forward"
    assert found.broken.ops is found.right.ops
    assert found.broken.forward is found.part
