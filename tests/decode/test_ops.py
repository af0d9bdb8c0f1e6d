"""What a layer is computed with around its attention: the operations of 069 against those of PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.decode.ops import MULTIPLE, LayerOps, Residual
from rosecourse.kernels import add_norm, add_norm_on
from rosecourse.models.ops import LayerOps as OneByOne
from rosecourse.models.ops import Linear, Norm
from tests.support.fewer_kernels import OnAGPU

ON_A_GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
WIDTH = 24


def tensors(*shapes, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def a_norm(seed=5, **kind):
    return Norm(*tensors(WIDTH, WIDTH, seed=seed, **kind), 1e-5)


def a_linear(size=WIDTH, width=WIDTH):
    return Linear(*tensors((width, size), size, seed=6))


# -- the residual -----------------------------------------------------------------------------------------------------


def streams(ops, x, wte):
    """Everything that streams are made from and read by, in an order that no layer has."""
    norms, (h, other) = [a_norm(), a_norm(9)], tensors((4, 11), (4, 13), seed=2)
    made = [ops.norm_linear(x, norms[0], a_linear(11)), ops.norm_linear(x, norms[1], a_linear(13))]
    made.append(ops.logits(x, norms[1], wte))  # the same stream is read again
    one, two = (ops.linear_add(given, a_linear(width=given.shape[1]), x) for given in (h, other))
    made += [ops.logits(stream, norms[0], wte) for stream in (one, two, x, one)]  # neither sees the other's sum
    both = ops.linear_add(other, a_linear(width=13), one)  # what waits is added before something else waits
    made.append(ops.norm_linear_gelu(both, norms[1], a_linear(13)))
    return [*made, ops.logits(ops.linear_add(made[-1], a_linear(width=13), both), norms[0], wte)]


def test_streams_that_are_used_in_any_order(model):
    token_ids, positions = torch.tensor([3, 0, 4, 3]), torch.tensor([0, 1, 2, 6])
    wte, wpe = tensors((5, WIDTH), (7, WIDTH), seed=1)
    both = LayerOps(model, None), OneByOne()
    found, right = (streams(ops, ops.embed(token_ids, positions, wte, wpe), wte) for ops in both)
    assert all(map(torch.equal, found, right))


# -- a GPU's ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
@pytest.mark.parametrize("vocab_size", [1, 211, 255, 256, 257])
def test_the_padding_of_the_vocabulary_is_in_no_logits(model, device, vocab_size):
    """A CPU's tensor that says it is on a GPU: rows as far apart as the padded vocabulary, and the same numbers."""
    wte, x = tensors((vocab_size, WIDTH), (5, WIDTH), device=device)
    ops, norm = LayerOps(model, None), a_norm(device=device)
    ops.add_norm = add_norm_on(torch.device(device))
    seen, other = wte.as_subclass(OnAGPU), (wte + 1).as_subclass(OnAGPU)
    for weight, is_new in ((seen, True), (seen, False), (other, True)):
        kept = ops.padded
        logits = ops.logits(Residual(x, None), norm, weight)
        assert logits.shape == (5, vocab_size)
        assert logits.stride(0) % MULTIPLE == 0
        assert 0 <= logits.stride(0) - vocab_size < MULTIPLE
        right = norm(x) @ weight.as_subclass(torch.Tensor).T
        torch.testing.assert_close(logits.as_subclass(torch.Tensor), right, atol=1e-5, rtol=1e-5)
        assert (ops.padded is kept) is (not is_new or vocab_size == MULTIPLE), "each vocabulary is padded once"


@pytest.mark.parametrize("device", [ON_A_GPU])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("n", [1, 3, 64, 128])
def test_gelu_at_the_end_of_a_product_is_the_one_of_gpt_2(model, n, dtype, device):
    """The other GELU, without tanh, is up to 5e-4 away: only float32 can tell."""
    kind = {"device": device, "dtype": dtype}
    (x,) = tensors((n, 768), **kind)
    norm = Norm(*tensors(768, 768, **kind), 1e-5)
    linear = Linear(tensors((768, 3072), **kind)[0] / 20, tensors((3072,), **kind)[0])
    ops = LayerOps(model, None)
    ops.add_norm = add_norm
    found = ops.norm_linear_gelu(Residual(x, None), norm, linear)
    h = norm(x).double() @ linear.weight.double() + linear.bias.double()
    right = F.gelu(h, approximate="tanh")
    torch.testing.assert_close(found.double(), right, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_vocabulary_is_not_padded_on_a_cpu(model):
    wte, x = tensors((211, WIDTH), (5, WIDTH))
    ops = LayerOps(model, None)
    assert ops.logits(Residual(x, None), a_norm(), wte).stride(0) == 211
    assert ops.padded is None
