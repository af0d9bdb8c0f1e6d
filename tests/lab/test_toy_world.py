"""A kind of part that the lab has never seen brings its own world: an oracle, scenarios, and the words for it."""

from dataclasses import replace

import pytest
import torch

from rosecourse import LESSONS, lesson
from rosecourse.decode import DecodeInputs, DecodeOutputs
from rosecourse.lab import check
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.costs import Cost, ideas
from rosecourse.lab.world.fault import Fault, PartIsWrong
from rosecourse.lab.world.oracle import Oracle
from rosecourse.lab.world.scenarios import Scenario, around_a_boundary, fork_in_a_block
from rosecourse.lab.world.situations import Situation, any_blocks, of
from rosecourse.lab.world.tiny_gpt2 import random_gpt2
from rosecourse.lab.world.worlds import World
from rosecourse.lessons.workloads import A
from tests.support.right_parts import copied
from tests.support.toy_lesson import COURSE

PARTS = lesson("061").after


class ToyForward(PARTS.forward):
    """The course's forward without the function that it makes in each step."""

    def __call__(self, inputs):
        self.inputs, self.outputs = inputs, DecodeOutputs(None, [], [])
        self.paged_attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)
        hidden = self.model.hidden(inputs.token_ids, inputs.context_lens, self.attention)
        return replace(self.outputs, logits=self.model.logits(hidden))

    def attention(self, layer_idx, q, k, v):
        self.outputs.keys.append(k)
        self.outputs.values.append(v)
        return self.paged_attention.run(layer_idx, q, k, v)


class WrongForward(ToyForward):
    def attention(self, layer_idx, q, k, v):
        return super().attention(layer_idx, q, k, v) * (1 + layer_idx)


class ForwardOracle(Oracle):
    """For a part `forward`: its logits must be those of the course's, over the same blocks."""

    def __init__(self, learner, sizes):
        super().__init__(learner, sizes)
        for cache in (*self.kv.k_layers, *self.kv.v_layers):
            cache.zero_()  # attention reads whole blocks
        model = random_gpt2(sizes.layers, sizes.heads, sizes.head_dim, sizes.max_seq_len)
        self.right = PARTS.forward(model, self.kv, sizes.config())

    def arguments(self, batch, tokens):
        lengths = torch.tensor([t.length for t in batch])
        tables = self.kv.block_indices([t.table for t in batch]).to(torch.int32)
        sessions = [t.session for t in batch]
        return (DecodeInputs(torch.ones(len(batch), dtype=torch.int64), lengths, int(lengths.max()), tables, sessions),)

    def work(self, batch):
        (inputs,) = self.arguments(batch, self.next_tokens(batch))
        outputs = self.call(batch, inputs)
        with torch.inference_mode():
            if not torch.equal(outputs.logits, self.right(inputs).logits):
                raise PartIsWrong(Fault("the logits are not those of the course's forward"))
        return self.append_next_tokens(batch)


WORLD = World(
    part="forward",
    words="a forward",
    called_with=("inputs",),
    oracle=ForwardOracle,
    scenarios=(Scenario("lengths around a boundary", around_a_boundary), Scenario("a fork", fork_in_a_block)),
)
ATTEND_CALLS = Cost("calls of attend", lambda seen: seen.counts.calls_of("attend"))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    rung = lesson("061").then("997", "toy forward", A, forward=ToyForward)
    idea = ideas((Situation("inside their blocks", of(any_blocks), n=3, layers=2),), ATTEND_CALLS)
    monkeypatch.setitem(COURSES, "997", replace(COURSE, number="997", world=WORLD, ideas=idea))
    LESSONS.append(rung)
    yield
    LESSONS.remove(rung)


def test_a_part_of_another_kind_is_checked():
    verdict = check(copied(ToyForward), "997")
    assert verdict.passed, verdict
    assert verdict.done[0].startswith("2 scenarios, ")
    verdict = check(PARTS.forward, "997")
    assert verdict.missing == (
        "still 2 calls of attend in a step of 3 sessions inside their blocks; "
        "the course's part of lesson 997 makes none",
    )


def test_a_wrong_one_is_refused_and_told_how_it_is_called():
    assert "the logits are not those of the course's forward" in str(check(WrongForward, "997"))
    assert "define `def __call__(self, inputs):`" in str(check(PARTS.kv_append, "997"))
