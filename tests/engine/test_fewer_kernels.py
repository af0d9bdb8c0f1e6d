"""Lesson 069 with its kernels makes the tokens of lesson 068, in float32: on a CPU through the interpreter.

Prompts end at the ends of blocks and beside them. On a GPU the parts run as they are.
"""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, lesson
from rosecourse.decode import runner as device_step
from rosecourse.kernels import AppendingAttention, choose
from rosecourse.kernels.appending_attention import attend_and_append
from rosecourse.models.load import from_transformers
from tests.support.fewer_kernels import BEFORE, INTERPRETED, PADDED
from tests.support.late_device import Behind
from tests.support.oracles import hf_random_gpt2, prompts_of

NATIVE = torch.cuda.is_available()
DEVICE = torch.device("cuda" if NATIVE else "cpu")
pytestmark = [pytest.mark.gpu] if NATIVE else []
AFTER = {"069": lesson("069").after} if NATIVE else {"eager": INTERPRETED, "padded": PADDED}
each_kind = pytest.mark.parametrize("parts", AFTER.values(), ids=AFTER)
BLOCK = 4


@pytest.fixture(scope="module")
def tiny(model):
    """A GPT-2 whose tokens depend on the whole context: 211 words, which are padded to 256."""
    made = from_transformers(hf_random_gpt2(num_layers=2), model.tokenizer, "tiny")
    if not NATIVE:
        return made
    weights = {name: weight.to(DEVICE) for name, weight in made.weights.items()}
    return type(made)(made.shape, weights, made.tokenizer, made.name)


def engine_of(model, parts, **config):
    settings = {"block_size": BLOCK, "max_batch_size": 4, "num_blocks": 64, "max_seq_len": 40, "prefix_cache": False}
    return InferenceEngine(model, EngineConfig(**settings | config), parts)


def greedy(new):
    return SamplingParams(max_new_tokens=new, stop_on_eos=False)


def both(model, parts, story, **config):
    """What a story makes of an engine of 068, and of one after it."""
    return [story(engine_of(model, one, **config)) for one in (BEFORE, parts)]


def scheduled(engine, prompts, new):
    """The tokens of some requests by a scheduler, and how often one was preempted."""
    scheduler = OnlineScheduler(engine)
    sessions = [engine.new_session(prompt, greedy(new)) for prompt in prompts]
    for session in sessions:
        scheduler.submit(session)
    while scheduler.has_work:
        scheduler.step()
    engine.audit([])
    return [session.completion_ids for session in sessions], scheduler.stats.preemptions


@each_kind
def test_over_the_ends_of_blocks(tiny, parts):
    """Six requests of a batch of four: rows are left and taken again."""
    prompts = prompts_of([1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 3], 211)
    before, after = both(tiny, parts, lambda engine: scheduled(engine, prompts, 7))
    assert before == after
    assert len({tuple(tokens) for tokens in before[0]}) == 6


@each_kind
def test_the_logits_are_those_of_before(tiny, parts):
    """Of every step: tokens may be equal where logits are not."""

    def logits(engine):
        sessions = [engine.new_session(prompt, greedy(12)) for prompt in prompts_of([3, 4, 9], 211)]
        rows = [engine.prefill(sessions)]
        for _ in range(6):
            engine.take_tokens(sessions, rows[-1])
            rows.append(engine.decode_step_sessions(sessions).as_subclass(torch.Tensor).clone())
        return torch.stack(rows)

    before, after = both(tiny, parts, logits)
    torch.testing.assert_close(after, before, atol=1e-4 * float(before.abs().max()), rtol=0)


@each_kind
def test_forks_that_go_on_with_other_words(tiny, parts):
    """From inside of a block, which is copied, and from its end; all are decoded together, and one leaves."""

    def story(engine):
        live = [engine.new_session(prompt, greedy(12)) for prompt in prompts_of([3, 4], 211)]
        engine.take_tokens(live, engine.prefill(live))
        for step in range(6):
            engine.take_tokens(live, engine.decode_step_sessions(live))
            if step in (0, 2):
                live.append(engine.fork(live[step // 2]))
                live[-1].token_ids[-1] = 7 + step
            elif step == 4:
                engine.free(live.pop(0))
            engine.audit(live)
        return [session.token_ids for session in live]

    before, after = both(tiny, parts, story)
    assert before == after


@pytest.mark.skipif(NATIVE, reason="every engine is one step behind there")
@each_kind
def test_one_step_behind(tiny, parts):
    prompts = prompts_of([2, 4, 7], 211)
    before, after = both(tiny, parts.with_(pipeline=Behind), lambda engine: scheduled(engine, prompts, 6))
    assert before == after


@each_kind
@pytest.mark.skipif(NATIVE, reason="a graph's replay calls no function")
def test_the_kernels_are_what_runs(tiny, parts, monkeypatch):
    """Each of a layer's attentions and the end of each step; else these tests would compare 068 with itself."""
    calls = {"attend": 0, "choose": 0}

    def counted(name, function):
        def call(*args):
            calls[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(AppendingAttention, "attention", staticmethod(counted("attend", attend_and_append)))
    monkeypatch.setattr(device_step, "choose", counted("choose", choose))
    scheduled(engine_of(tiny, parts), prompts_of([2, 4], 211), 4)
    assert calls == {"attend": 3 * 2, "choose": 3}
