"""What a layer is computed with around its attention: the operations of 069 against those of PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.decode.ops import MULTIPLE, LayerOps, Residual, padded_bytes
from rosecourse.kernels import TRITON_AVAILABLE, add_norm, add_norm_on
from rosecourse.models.ops import LayerOps as OneByOne
from rosecourse.models.ops import Linear, Norm, with_ops
from tests.support.fewer_kernels import OnAGPU

ON_A_GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
WIDTH = 24


def attend(layer_idx, q, k, v):
    """Of each token to itself, and a little to what is around it."""
    return v + 0.1 * torch.tanh(q * k.roll(1, 0)) + 0.01 * layer_idx


def run(model, ops, n=7):
    """Logits, and the hidden states that they were made of."""
    model = with_ops(model, ops)
    token_ids, positions = torch.arange(n) * 29 % model.shape.vocab_size, torch.arange(n) * 5 % model.shape.context
    with torch.inference_mode():
        hidden = model.hidden(token_ids, positions, attend)
        return model.logits(hidden), hidden


def tensors(*shapes, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def a_norm(seed=5, **kind):
    return Norm(*tensors(WIDTH, WIDTH, seed=seed, **kind), 1e-5)


def a_linear(size=WIDTH, width=WIDTH):
    return Linear(*tensors((width, size), size, seed=6))


@pytest.mark.parametrize(
    "kernel", [False, pytest.param(True, marks=pytest.mark.skipif(not TRITON_AVAILABLE, reason="needs Triton"))]
)
def test_a_model_adds_once_for_each_norm_and_computes_the_same(small_model, kernel):
    """The same bits on a CPU, and with the kernel, which goes through the interpreter there, nearly the same."""
    ops, calls = LayerOps(small_model, None), []
    adds = add_norm if kernel else ops.add_norm
    ops.add_norm = lambda *args: calls.append(args) or adds(*args)
    (logits, hidden), (right, right_hidden) = run(small_model, ops), run(small_model, OneByOne())
    torch.testing.assert_close(logits, right, atol=2e-5 * kernel, rtol=2e-5 * kernel)
    torch.testing.assert_close(hidden.x, right_hidden, atol=2e-5 * kernel, rtol=2e-5 * kernel)
    assert hidden.delta is None  # the logits have added what waited
    assert len(calls) == 2 * small_model.shape.num_layers + 1


# -- the residual -----------------------------------------------------------------------------------------------------


def norms(ops, x, wte):
    """The second norm of the same stream reads the sum that the first one has made."""
    made = [ops.norm_linear(x, a_norm(), a_linear(11)), ops.norm_linear(x, a_norm(9), a_linear(13))]
    return [*made, ops.logits(x, a_norm(9), wte)]


def adds(ops, x, wte):
    """What waits is added before something else waits."""
    h, other = tensors((4, 11), (4, 13), seed=2)
    x = ops.linear_add(other, a_linear(width=13), ops.linear_add(h, a_linear(width=11), x))
    return [ops.logits(x, a_norm(), wte)]


def branches(ops, x, wte):
    """Two streams from one: neither sees what is added to the other."""
    h, other = tensors((4, 11), (4, 13), seed=2)
    one, two = ops.linear_add(h, a_linear(width=11), x), ops.linear_add(other, a_linear(width=13), x)
    return [ops.logits(stream, a_norm(), wte) for stream in (one, two, x, one)]


def turns(ops, x, wte):
    """As in a layer, and with GELU."""
    x = ops.linear_add(ops.norm_linear(x, a_norm(), a_linear(11)), a_linear(width=11), x)
    h = ops.norm_linear_gelu(x, a_norm(), a_linear(13))
    return [h, ops.logits(ops.linear_add(h, a_linear(width=13), x), a_norm(), wte)]


@pytest.mark.parametrize("story", [norms, adds, branches, turns])
def test_streams_that_are_used_in_any_order(story):
    token_ids, positions = torch.tensor([3, 0, 4, 3]), torch.tensor([0, 1, 2, 6])
    wte, wpe = tensors((5, WIDTH), (7, WIDTH), seed=1)
    fused = LayerOps.__new__(LayerOps)
    fused.add_norm, fused.padded = add_norm_on(torch.device("cpu")), None
    found, right = (story(ops, ops.embed(token_ids, positions, wte, wpe), wte) for ops in (fused, OneByOne()))
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one, other)


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


def test_on_a_cpu_nothing_is_padded(model):
    wte, x = tensors((211, WIDTH), (5, WIDTH))
    ops = LayerOps(model, None)
    assert ops.logits(Residual(x, None), a_norm(), wte).stride(0) == 211
    assert ops.padded is None


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


@pytest.mark.parametrize(("vocab_size", "rows"), [(257, 512), (50257, 50432), (512, 0)])
def test_the_memory_of_the_padded_vocabulary(vocab_size, rows):
    """None where nothing is padded, as in the shipped model."""
    assert padded_bytes(vocab_size, 8, torch.float16) == rows * 8 * 2
