"""Comparing logits: bits, ties, and choices that are no ties; engines that are all told the same tokens."""

from dataclasses import replace

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.measure.logits import SameLogits, compare_logits, forced_steps, logits_document

ROW = torch.tensor([[4.0, 1.0, 3.99, 0.0, -2.0]])


def changed(at, value):
    row = ROW.clone()
    row[0, at] = value
    return row


def test_equal_bits():
    found = SameLogits.of(ROW, ROW.clone())
    assert found == SameLogits(steps=1, rows=1, numbers=5, different=0, apart=0.0, other_choices=0, ties=0)
    told = (found + found).sentence("070", "071")
    assert told.endswith("all 10 logits are the same, bit for bit.")
    assert "over 2 steps, 2 rows" in told


def test_a_sign_of_zero_is_another_number_of_bits():
    assert SameLogits.of(ROW, changed(3, -0.0)).different == 1


@pytest.mark.parametrize(
    ("at", "value", "other_choices", "ties", "said"),
    [
        (1, 2.0, 0, 0, "Every row chooses the same token."),
        (2, 4.02, 1, 1, "1 rows choose another token, each of them at a tie."),
        (1, 5.0, 1, 0, "1 rows choose another token, 0 of them at a tie."),  # it was not among the two largest
    ],
)
def test_what_becomes_of_the_choice(at, value, other_choices, ties, said):
    found = SameLogits.of(ROW, changed(at, value))
    assert (found.different, found.other_choices, found.ties) == (1, other_choices, ties)
    assert found.apart == pytest.approx(abs(value - float(ROW[0, at])) / 4)
    assert found.sentence("069", "070").endswith(said)


def test_the_third_largest_is_no_tie_however_near_it_is():
    near = torch.tensor([[4.0, 3.98, 3.99]])
    found = SameLogits.of(near, torch.tensor([[4.0, 4.01, 3.99]]))
    assert (found.other_choices, found.ties) == (1, 0)


def test_the_second_largest_is_no_tie_where_it_is_far_away():
    apart = torch.tensor([[4.0, 1.0, 3.9]])
    assert SameLogits.of(apart, torch.tensor([[4.0, 1.0, 4.5]])).ties == 0


def test_half_precision_and_rows_of_a_wider_tensor():
    wide = torch.randn(3, 16).half()
    other = wide.clone()
    other[2, 1] += 1
    assert SameLogits.of(wide[:, :11], other[:, :11]).different == 1


def engines_of(model, numbers):
    config = EngineConfig(block_size=4, max_batch_size=3, max_seq_len=24, prefix_cache=False)
    return {number: InferenceEngine(model, config, lesson(number).after) for number in numbers}


def test_engines_are_compared_with_the_first_and_with_the_one_before(model):
    prompts = [[5, 6, 7], [9], [20, 21, 22, 23, 24]]
    engines = engines_of(model, ["038", "069", "070", "071"])
    found = compare_logits(engines, prompts, 6)
    assert list(found) == [("038", "069"), ("038", "070"), ("069", "070"), ("038", "071"), ("070", "071")]
    assert all((one.steps, one.rows) == (6, 18) for one in found.values())
    assert [found[pair].different for pair in (("069", "070"), ("070", "071"))] == [0, 0]  # the same code on a CPU
    assert found["038", "069"].other_choices == 0
    assert found["038", "069"].apart < 1e-4
    assert [one["of"] for one in logits_document(found)] == [list(pair) for pair in found]
    for engine in engines.values():
        engine.audit([])


def test_all_engines_take_the_tokens_of_the_first(model):
    """Another model, which would go on with other tokens, makes its own logits of those that it is told."""
    weights = {
        name: weight.flip(0) if name.endswith("wpe.weight") else weight for name, weight in model.weights.items()
    }
    other_model = type(model)(model.shape, weights, model.tokenizer, "other")
    prompt, params = [5, 6, 7], SamplingParams(max_new_tokens=2, stop_on_eos=False)
    engines = engines_of(model, ["070"]) | {"other": engines_of(other_model, ["071"])["071"]}
    (alone,) = engines_of(model, ["070"])["070"].generate([prompt], replace(params, max_new_tokens=6))
    judge = engines_of(other_model, ["035"])["035"]
    parted = 0
    for number, step in enumerate(forced_steps(engines, [prompt], 5)):
        told = prompt + alone.token_ids[: number + 1]
        session = judge.new_session(told, params)
        torch.testing.assert_close(step["other"], judge.prefill([session]), rtol=0, atol=1e-3)
        judge.free(session)
        parted += int(step["other"].argmax()) != int(step["070"].argmax())
    assert parted
