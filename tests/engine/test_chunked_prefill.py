"""Prompts in chunks under a budget of tokens a step: the same tokens, whatever happens in the middle of a prompt."""

import pytest
import torch
from transformers import LlamaForCausalLM

from rosecourse import (
    BEST,
    ConfigError,
    EngineConfig,
    InferenceEngine,
    OfflineScheduler,
    OnlineScheduler,
    SamplingParams,
    lesson,
    load_model,
)
from rosecourse.config import DATA
from tests.support.failing import sick_model
from tests.support.late_device import BEHIND, LATE
from tests.support.llamas import greedy
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import check, make_engine, submit

PARTS = {"best": BEST, "behind": BEHIND, "late": LATE, "068": lesson("068").after}


@pytest.fixture(scope="module", params=["tiny-gpt2", "tiny-llama"])
def family(request, hf_model):
    """A shipped model, and the greedy tokens after a prompt by `transformers`."""
    model = load_model(request.param, device="cpu")
    if request.param == "tiny-gpt2":
        return model, lambda prompt, most: hf_greedy(hf_model, [prompt], most)[0]
    hf = LlamaForCausalLM.from_pretrained(DATA / request.param, dtype=torch.float32).eval()
    return model, lambda prompt, most: greedy(hf, prompt, most)


def sizes_of(scheduler):
    """Fills a list with the tokens of each step: of those that decode, and of the chunks."""
    found, runner = [], scheduler.runner
    mix, launch = runner.mix, runner.launch
    runner.mix = lambda decoding, chunks: (found.append((len(decoding), [*chunks.values()])), mix(decoding, chunks))[1]
    runner.launch = lambda batch: (found.append((len(batch), [])), launch(batch))[1]
    return found


def run(scheduler, do=lambda step: None):
    """Step to the end, with `do` before each step; looks at the cache and at the budget after each one."""
    sizes = sizes_of(scheduler)
    for step in range(500):
        do(step)
        if not scheduler.has_work:
            break
        scheduler.step()
        check(scheduler)
    assert not scheduler.has_work
    assert all(decoding + sum(chunks) <= scheduler.budget for decoding, chunks in sizes)
    kv = scheduler.engine.kv
    assert kv.num_available() == kv.num_blocks
    return sizes


def whole(model, prompts, new, **config):
    """The tokens by an engine that computes each prompt whole."""
    params = SamplingParams(max_new_tokens=new, stop_on_eos=False)
    return [g.token_ids for g in make_engine(model, **config).generate(prompts, params)]


# Budget, block size, batch: chunks of 1 to 512 tokens, below, at and above the edges of blocks.
SIZES = [(1, 4, 1), (2, 1, 2), (7, 16, 4), (16, 16, 3), (17, 16, 4), (64, 64, 8), (65, 16, 1), (512, 64, 8)]


@pytest.mark.parametrize(("budget", "block_size", "batch"), SIZES)
def test_chunks_give_the_tokens_of_transformers(family, budget, block_size, batch):
    model, expected = family
    edges = {1, block_size, block_size + 1, budget - 1, budget, budget + 1, 2 * budget, 2 * budget + block_size}
    lengths = sorted({min(n, 200) for n in edges if n > 0})
    prompts = prompts_of(lengths, model.shape.vocab_size, seed=budget)
    config = EngineConfig(block_size=block_size, max_batch_size=batch, max_num_batched_tokens=budget, max_seq_len=256)
    engine = InferenceEngine(model, config)
    found = engine.generate(prompts, SamplingParams(max_new_tokens=8, stop_on_eos=False))
    assert [g.token_ids for g in found] == [expected(prompt, 8) for prompt in prompts]
    engine.audit([])


def test_a_step_takes_decodes_first_then_prompts_in_order(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, max_num_batched_tokens=6, prefix_cache=False))
    submit(scheduler, [3, 14, 2], 4)
    assert run(scheduler) == [
        (0, [3, 3]),
        (1, [5]),
        (1, [5]),
        (1, [1, 2]),
        (2, []),
        (2, []),
        (2, []),
    ]


def test_a_step_without_a_prompt_takes_the_path_of_a_decode(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, max_num_batched_tokens=8, prefix_cache=False))
    submit(scheduler, [20], 10)
    sizes = run(scheduler)
    assert [chunks for _, chunks in sizes] == [[8], [8], [4], *[[]] * 9]
    assert scheduler.stats.decode_steps == 9


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("temperature", [0.0, 1.1])
def test_chunks_draw_what_whole_prompts_draw(small_model, parts, temperature):
    """One step behind, too, where the last token of who decodes is on the device alone."""
    found = []
    for budget in (None, 5):
        scheduler = OnlineScheduler(make_engine(small_model, PARTS[parts], max_num_batched_tokens=budget))
        sessions = submit(scheduler, [3, 17, 9, 30, 1, 12], [9, 3, 12, 5, 20, 1], temperature)
        scheduler.run()
        found.append([session.token_ids for session in sessions])
    assert found[0] == found[1]


@pytest.mark.parametrize("parts", PARTS)
def test_a_prefix_that_is_known_is_in_no_chunk(small_model, parts):
    (stem,) = prompts_of([20], 211)
    prompts = [stem, [*stem, 5, 6, 7], [*stem[:13], 8, 9], stem]
    engine = make_engine(small_model, PARTS[parts], max_num_batched_tokens=6)
    scheduler = OnlineScheduler(engine)
    sizes, found = sizes_of(scheduler), []
    for prompt in prompts:
        session = engine.new_session(prompt, SamplingParams(max_new_tokens=6, stop_on_eos=False))
        scheduler.submit(session)
        while scheduler.has_work:
            scheduler.step()
            check(scheduler)
            assert {*engine.prefix_cache.entries()} <= {*engine.kv.blocks_in_use}
        found.append(session.completion_ids)
    assert found == whole(small_model, prompts, 6, prefix_cache=False)
    assert [sum(chunks) for _, chunks in sizes if chunks] == [6, 6, 6, 2, 3, 3, 4]


def test_no_prefix_is_known_before_its_prompt_is_whole(small_model):
    engine = make_engine(small_model, max_num_batched_tokens=8)
    scheduler = OnlineScheduler(engine)
    (session,) = submit(scheduler, [20], 2)
    for computed in (8, 16):
        scheduler.step()
        assert (session.num_cached_tokens, engine.prefix_cache.entries()) == (computed, [])
    scheduler.step()
    assert len(engine.prefix_cache.entries()) == 5


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("at", range(6))
def test_a_cancel_in_the_middle_of_a_prompt_loses_nothing(small_model, parts, at):
    prompts = prompts_of([5, 20, 9], 211)
    engine = make_engine(small_model, PARTS[parts], max_num_batched_tokens=6, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, [5, 20, 9], 6)
    run(scheduler, lambda step: scheduler.cancel(sessions[1]) if step == at else None)
    assert sessions[1].finish_reason == "cancelled"
    expected = whole(small_model, prompts, 6)
    assert [sessions[n].completion_ids for n in (0, 2)] == [expected[0], expected[2]]


@pytest.mark.parametrize("parts", PARTS)
def test_a_prompt_that_is_preempted_in_its_middle_comes_back(small_model, parts):
    prompts = prompts_of([7, 9, 14], 211)
    scheduler = OnlineScheduler(make_engine(small_model, PARTS[parts], max_num_batched_tokens=5, num_blocks=9))
    sessions = submit(scheduler, [7, 9, 14], 12)
    preempted = []

    def preempt(step):
        if step in (1, 4, 7) and scheduler.running[-1].awaits_prefill:
            with scheduler.engine.guard:
                preempted.append(scheduler._preempt_newest())

    run(scheduler, preempt)
    assert preempted
    assert scheduler.stats.preemptions >= len(preempted)
    assert [session.completion_ids for session in sessions] == whole(small_model, prompts, 12)


@pytest.mark.parametrize("parts", PARTS)
def test_samples_are_forked_when_their_prompt_is_whole(small_model, parts):
    prompts = prompts_of([3, 18, 11], 211)
    params = SamplingParams(max_new_tokens=7, stop_on_eos=False, temperature=0.9)
    found = []
    for budget in (None, 5):
        engine = make_engine(small_model, PARTS[parts], max_num_batched_tokens=budget)
        found.append([g.token_ids for g in engine.generate(prompts, params, n=3)])
        engine.audit([])
    assert found[0] == found[1]


@pytest.mark.parametrize("parts", ["best", "behind"])
def test_nan_in_a_chunk_ends_that_request_alone(small_model, parts):
    model = sick_model(small_model, 13)
    engine = make_engine(model, PARTS[parts], max_num_batched_tokens=5)
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, [4, 20, 6], 4)
    run(scheduler)
    assert [session.finish_reason for session in sessions] == ["length", "error", "length"]
    assert all(len(engine.prefix_cache.lookup(s.prompt_ids)) == n for s, n in zip(sessions, (0, 0, 1), strict=True))


@pytest.mark.parametrize("name", ["mixed_step", "begin", "land"])
def test_a_fault_in_the_middle_of_a_prompt_computes_it_again(small_model, monkeypatch, name):
    prompts = prompts_of([5, 20, 9], 211)
    scheduler = OnlineScheduler(make_engine(small_model, BEHIND, max_num_batched_tokens=6))
    sessions = submit(scheduler, [5, 20, 9], 6)
    for _ in range(2):
        scheduler.step()
    assert sessions[1].awaits_prefill

    def fails(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(scheduler.runner, name, fails)
        with pytest.raises(MemoryError):
            scheduler.step()
    check(scheduler)
    assert sessions[1].table is None
    run(scheduler)
    assert [session.completion_ids for session in sessions] == whole(small_model, prompts, 6)


@pytest.mark.parametrize("budget", [3, 0, -1, 2.5, "many", True])
def test_a_budget_below_the_batch_is_refused(budget):
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens is .*: give 4 \(max_batch_size: .*$"):
        EngineConfig(max_batch_size=4, max_num_batched_tokens=budget)


def test_a_budget_needs_parts_of_068_or_later(small_model):
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens needs the pipeline of lesson 068 or later: "):
        make_engine(small_model, lesson("067").after, max_num_batched_tokens=8)
    with pytest.raises(ConfigError, match=r"^static batching computes whole prompts: "):
        OfflineScheduler(make_engine(small_model, max_num_batched_tokens=8))
