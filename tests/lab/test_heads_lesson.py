"""The part of 073 is checked: right attention passes, in whatever style; wrong heads, masks and numbers are refused."""

import pytest
import torch

from rosecourse import lesson
from rosecourse.kernels.reference import context_positions, context_rows
from rosecourse.lab.checks.checking import judged_apart
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lessons.l073 import PlainForward
from tests.lab.wrong_operations import damaged
from tests.support.cells import exercise_of
from tests.support.verdicts import operations_of, trial_of

SPLIT, JOIN = "q.unflatten(1, (H_kv, -1))", "@ v).flatten(1, 2)"
WRONG = [
    ("heads in turns", SPLIT, "q.unflatten(1, (-1, H_kv)).transpose(1, 2)", JOIN, "@ v).transpose(1, 2).flatten(1, 2)"),
    ("heads put back in turns", JOIN, "@ v).transpose(1, 2).flatten(1, 2)"),
    ("K of the first head", "k.transpose(2, 3)", "k[:, :1].transpose(2, 3)"),
    ("V of the last head", "@ v)", "@ v[:, -1:])"),
    ("the new K as V", "v_new[:, :, None]", "k_new[:, :, None]"),
    ("no mask", "scores[..., :-1] += mask[:, :, None]", "pass"),
    ("a mask for all", "mask[:, :, None]", "mask[:1, :, None]"),
    ("scaled by the number of heads, too", "D**-0.5", "(D * groups.shape[2]) ** -0.5"),
    ("in half precision", ".float()", ""),
    ("the cache is changed", SPLIT, "(k_layer.nan_to_num_(0), q)[1].unflatten(1, (H_kv, -1))"),
]
EXPANDED = (
    "copies by a product",
    "scores = groups @ k.transpose(2, 3)",
    "each = k[:, :, None].expand(-1, -1, groups.shape[2], -1, -1)\n"
    "        scores = (groups[..., None, :] @ each.transpose(3, 4)).squeeze(3)",
)


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[0])
def test_wrong_attention_is_refused_in_a_small_story(row):
    verdict = judged_apart(damaged("073", *row), lesson("073"))
    assert not verdict.correct, verdict
    assert operations_of(verdict) <= 3, verdict


def test_a_wrong_head_is_told_by_its_number():
    told = str(judged_apart(damaged("073", *WRONG[0]), lesson("073")))
    assert "(kv_heads=2, group=2)" in told
    assert "session A, query head 1, number 0 must be" in told
    assert ", of KV head 0; found: " in told
    assert told.splitlines()[-1].endswith(", of KV head 1")


class OneSessionAfterAnother(PlainForward):
    def attention(self, q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
        size, read = k_layer.shape[2], []
        for b, length in enumerate(context_lens.tolist()):
            blocks = block_table[b, : -(-length // size)].long()
            k, v = (cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (k_layer, v_layer))
            k, v = torch.cat([k, k_new[b, :, None]], 1).float(), torch.cat([v, v_new[b, :, None]], 1).float()
            groups = q[b].view(len(k), -1, q.shape[2]).float() * q.shape[2] ** -0.5
            weights = torch.einsum("hgd,htd->hgt", groups, k).softmax(-1)
            read.append(torch.einsum("hgt,htd->hgd", weights, v).flatten(0, 1))
        return torch.stack(read).to(q.dtype)


class TheNewTokenApart(PlainForward):
    def attention(self, q, k_layer, v_layer, block_table, context_lens, max_context_len, k_new, v_new):
        H_kv, size, D = k_layer.shape[1:]
        positions, mask = context_positions(context_lens, max_context_len)
        rows = context_rows(block_table, positions, H_kv, size)
        q, k_new, v_new = q.float().unflatten(1, (H_kv, -1)) / D**0.5, k_new.float(), v_new.float()
        old = q @ k_layer.reshape(-1, D)[rows].float().mT + mask[:, :, None]
        weights = torch.cat([old, (q * k_new[:, :, None]).sum(-1, keepdim=True)], -1).softmax(-1)
        read = weights[..., :-1] @ v_layer.reshape(-1, D)[rows].float() + weights[..., -1:] * v_new[:, :, None]
        return read.flatten(1, 2).to(k_layer.dtype)


@pytest.mark.parametrize("part", [OneSessionAfterAnother, TheNewTokenApart])
def test_attention_in_other_styles_passes(part):
    verdict = judged_apart(part, lesson("073"))
    assert verdict.passed, verdict


@pytest.mark.parametrize("part", [damaged("073", *EXPANDED), exercise_of("073")], ids=["expanded", "repeated"])
def test_copies_for_each_query_head_lack_the_idea(part):
    (said,) = trial_of("073").missing(part)
    assert said.endswith("with the course's part: 8")


def test_hunts_heads_have_values_and_keys_of_the_right_length():
    bug = hunt("073")
    right, broken = bug.engines()
    for moment, (ours, theirs) in enumerate(zip(bug.scene(right), bug.scene(broken), strict=True)):
        wrong = {name for name in ours if ours[name].token_ids != theirs[name].token_ids}
        assert wrong == ({"B"} if moment > 7 else set())
        if moment == 7:
            tables = zip((right, broken), (ours["B"].table, theirs["B"].table), strict=True)
            (k, v), (their_k, their_v) = ((e.kv.k_layers[0][ids], e.kv.v_layers[0][ids]) for e, ids in tables)
            torch.testing.assert_close(their_v, v)
            torch.testing.assert_close(their_k.norm(dim=-1), k.norm(dim=-1))
            assert not torch.allclose(their_k, k)
