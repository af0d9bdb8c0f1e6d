"""How exact the logits of whole models are, in float16, over norms that are folded into products: with outlier weights.

Trained models have them: a few columns of the residual stream are a thousand times as large as the others, the gains of
norms differ by as much, and a mean may be large beside the deviation. On a CPU the kernels go through the interpreter.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from rosecourse import load_model
from rosecourse.kernels.fused import FusedLinears, folded
from rosecourse.models.gpt2 import GPT2
from rosecourse.models.load import from_transformers
from rosecourse.models.ops import LayerOps
from tests.kernels.small_products import DEVICE
from tests.support.oracles import hf_random_gpt2

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
MORE = 1.25  # times the error of one operation after another


class FoldedOps:
    """The operations of a model (`models.ops.Ops`), one kernel each."""

    def __init__(self):
        self.linears = FusedLinears(DEVICE, torch.float16)
        self.embed = self.linears.embed

    def norm_linear(self, x, norm, linear, gelu=False):
        w = folded(norm.weight, norm.bias, linear.weight, linear.bias)
        return self.linears.norm_linear(x, w, norm.eps, gelu)

    def norm_linear_gelu(self, x, norm, linear):
        return self.norm_linear(x, norm, linear, gelu=True)

    def linear_add(self, h, linear, x):
        return self.linears.linear_add(h, folded(None, None, linear.weight, linear.bias), x)

    def logits(self, x, norm, wte):
        return self.linears.logits(x, folded(norm.weight, norm.bias, wte.T, None), norm.eps).logits


def large_columns(name, weight):
    """Of the residual stream: 1000 and -300 where the other numbers are about 1."""
    if name == "wpe.weight":
        weight[:, 3], weight[:, 11] = 1000.0, -300.0


def large_mean(name, weight):
    if name == "wpe.weight":
        weight += 40.0


def gains_far_apart(name, weight):
    """Times 0.13 to 7.6, some of them negative. (Much larger ones make attention choose between equals by chance.)"""
    if "ln_" in name and name.endswith("weight"):
        i = torch.arange(len(weight), device=weight.device)
        weight *= 1.5 ** (i * 5 % 11 - 5) * (1 - 2 * (i % 2))


def gains_that_undo_columns(name, weight):
    """What a large column was multiplied by, its gain divides by, so that all columns count."""
    large_columns(name, weight)
    if "ln_" in name:
        weight[3] /= 256
        weight[11] /= 64


KINDS = [large_columns, large_mean, gains_far_apart, gains_that_undo_columns]


@pytest.fixture(scope="module")
def models(model):
    """In float16: some random ones, because one may be lucky, and the shipped one with the first of its words."""
    made = [hf_random_gpt2(4, 8, seed, num_layers=2) for seed in range(2)]
    shipped = load_model(dtype="float16", device=DEVICE)
    words = {"wte.weight": shipped.weights["wte.weight"][:256]}
    return {
        "random": [from_transformers(hf, model.tokenizer, "small", torch.float16, DEVICE) for hf in made],
        "trained": [GPT2(replace(shipped.shape, vocab_size=256), shipped.weights | words, None, "shipped")],
    }


def with_outliers(model, change):
    weights = {name: weight.clone() for name, weight in model.weights.items()}
    for name, weight in weights.items():
        change(name, weight)
    return GPT2(model.shape, weights, None, model.name)


def attend(layer_idx, q, k, v):
    """Each token to those before it: the same for all operations, in float32, or in float64 where the model is."""
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)).transpose(0, 1) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*wide, is_causal=True).transpose(0, 1).to(q.dtype)


def logits_of_a_prompt(model, ops):
    """[32, V]: of each of its tokens."""
    positions, computed = torch.arange(32, device=DEVICE), model.with_ops(ops)
    with torch.no_grad():
        return computed.logits(computed.hidden(positions * 6 + 1, positions, attend)).double()


def errors(models, change, *all_ops):
    """Of the logits of each of these operations, relative to those in float64: the root of the mean over models."""
    squares = []
    for changed in [with_outliers(model, change) for model in models]:
        wide = GPT2(changed.shape, {name: weight.double() for name, weight in changed.weights.items()}, None, "wide")
        expected = logits_of_a_prompt(wide, LayerOps())
        apart = [logits_of_a_prompt(changed, ops) - expected for ops in all_ops]
        squares.append([float(x.norm() / expected.norm()) ** 2 for x in apart])
    return torch.tensor(squares).mean(0).sqrt().tolist()


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # GELU of a large negative number, which is 0
@pytest.mark.parametrize(("weights", "change"), [*(("random", change) for change in KINDS), ("trained", large_columns)])
def test_logits_are_as_exact_as_those_of_single_operations(models, weights, change):
    one_by_one, in_kernels = errors(models[weights], change, LayerOps(), FoldedOps())
    assert 0 < in_kernels <= MORE * one_by_one
