"""What the kernels do for the Llama family: against float64, and in engines whose tokens are those of transformers.

On a CPU they go through the interpreter.
"""

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode import five_kernels, ops
from rosecourse.kernels import FusedLinears, add_norm, folded
from rosecourse.kernels.appending_attention import attend_and_append, splits_for
from rosecourse.lessons import l070
from rosecourse.models.configs import shape_of
from rosecourse.models.llama import Llama, LlamaLayer, LlamaShape, Turn
from rosecourse.models.ops import GatedLinear
from rosecourse.models.shape import Rotary
from tests.kernels.attention_inputs import Case
from tests.kernels.harness import DEVICE, EPS
from tests.kernels.products import guarded, is_close, numbers, stream_of
from tests.support.fewer_kernels import Forward
from tests.support.llamas import LLAMA3, greedy, random_hf
from tests.support.oracles import attention

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
pytestmark.append(pytest.mark.filterwarnings("ignore:(All-NaN slice|invalid value|overflow) encountered"))


TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


# -- products -----------------------------------------------------------------------------------------------------

# Rows, inputs, outputs, or pairs of them: around tiles, widths such as 576, and inputs that are split.
SIZES = [(1, 64, 48), (3, 576, 96), (17, 33, 31), (65, 96, 40), (2, 1100, 24)]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GRID = [(DTYPES[(i + j) % 3], bool(j), *size) for i, size in enumerate(SIZES) for j in range(2)]


def rms(x, gain):
    return F.rms_norm(x.double(), x.shape[1:], gain.double(), EPS)


@pytest.mark.parametrize(("dtype", "gated", "B", "K", "N"), GRID)
def test_an_rms_norm_and_a_product(dtype, gated, B, K, N):
    gain, x = numbers(K, dtype=dtype, scale=0.3, shift=1), numbers(B, K, dtype=dtype, shift=0.5)
    weight, bias = numbers(K, N * (1 + gated), dtype=dtype, scale=K**-0.5), numbers(N * (1 + gated), dtype=dtype)
    linears, w = FusedLinears(DEVICE, dtype), folded(gain, None, weight, bias, True, gated)
    w = w._replace(weight=guarded(w.weight))
    out = linears.norm_linear(stream_of(linears, x), w, EPS)
    rows, norm = w.weight.double(), rms(x, torch.ones_like(gain))
    right = norm @ rows.T + w.bias.double()
    size = norm.abs() @ rows.abs().T + w.bias.double().abs()
    if gated:
        (gate, up), (of_gate, of_up) = (part.unflatten(1, (N, 2)).unbind(2) for part in (right, size))
        right, size = F.silu(gate) * up, 2 * (1 + of_gate) * (1 + of_up)
    is_close(out, right, size)
    plain = GatedLinear(weight, bias)(rms(x, gain).to(dtype)) if gated else rms(x, gain) @ weight.double() + bias
    loose = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}[dtype]
    torch.testing.assert_close(out.double(), plain.double(), atol=loose, rtol=loose)


@pytest.mark.parametrize(("dtype", "B", "C"), [(torch.float32, 2, 33), (torch.float16, 17, 576)])
def test_an_rms_norm_reads_what_a_sum_has_left_and_logits_too(dtype, B, C):
    """In several tiles, whose means are far apart."""
    linears, gain = FusedLinears(DEVICE, dtype), numbers(C, dtype=dtype, shift=1)
    token_ids = torch.arange(B, device=DEVICE)
    table = numbers(B, C, dtype=dtype) + torch.arange(C, device=DEVICE, dtype=dtype) // 32 % 3 * 4
    stream = linears.embed(token_ids, token_ids, table, None)
    assert torch.equal(stream.x, table)
    h, weight = numbers(B, 24, dtype=dtype, seed=1), numbers(24, C, dtype=dtype)
    stream = linears.linear_add(h, folded(None, None, weight, None), stream)
    w = folded(gain, None, numbers(C, 70, dtype=dtype, scale=C**-0.5), None, True)
    right = rms(stream.x, torch.ones_like(gain)) @ w.weight.double().T
    is_close(linears.norm_linear(stream, w, EPS), right, right.abs() + 8)
    head = linears.logits(stream, w, EPS)
    is_close(head.logits, right, right.abs() + 8)
    assert torch.equal(head.best.amax(1), head.logits.float().amax(1))


@pytest.mark.parametrize(("dtype", "C"), [(torch.float32, 48), (torch.float16, 576)])
def test_a_sum_and_its_rms_norm(dtype, C):
    x, delta, gain = (numbers(5, C, dtype=dtype, seed=seed, shift=1) for seed in range(3))
    total, normed = add_norm(x, delta, gain[0].contiguous(), None, EPS)
    assert torch.equal(total, x + delta)
    is_close(normed, rms(total, gain[0]), 1.0)


# -- attention ----------------------------------------------------------------------------------------------------


def a_rotary(D, context, dtype, norm, turn):
    gains = numbers(2, D, dtype=dtype, scale=0.3, shift=1) if norm else None
    shape = LlamaShape(9, context, 8, 8, 1, 1, 1, D, rope_theta=100.0)
    return Rotary(shape.rotations(DEVICE).to(dtype) if turn else None, gains, 1e-3 if norm else 0.0)


def turned(q, k, lens, rotary):
    """What the plain model makes of them, from float64."""
    wide = Rotary(*(None if part is None else part.double() for part in rotary[:2]), rotary.eps)
    turn = None if wide.rotations is None else Turn(wide.rotations[lens])
    layer = LlamaLayer.__new__(LlamaLayer)
    layer.rotary, layer.heads = wide, (q.shape[1], k.shape[1])
    return layer.turned(torch.cat([q, k], 1).double(), turn).split(layer.heads, 1)


TURNS = [(True, False), (True, True), (False, True)]  # RoPE, norm
HEADS = [(1, 3, 32, 1), (2, 1, 64, 16), (1, 4, 128, 64), (2, 2, 80, 4)]  # KV heads, group, D, block size
CASES = [
    (*TURNS[(i + j) % 3], DTYPES[(i + 2 * j) % 3], *HEADS[i], [1, 1024][(i + j) % 2])
    for i in range(4)
    for j in range(2)
]


@pytest.mark.parametrize(("turn", "norm", "dtype", "H", "group", "D", "block_size", "longest"), CASES)
def test_attention_turns_what_it_appends(turn, norm, dtype, H, group, D, block_size, longest):
    """longest: so long that contexts are in parts."""
    lens = sorted({0, 1, block_size - 1, block_size, 33})
    case = Case(lens, dtype, H, D, block_size, group, fused=True)
    q, k_layer, v_layer, table, context_lens, _, k_new, v_new = case.args()
    assert (splits_for(len(lens) * H, longest) > 1) is (longest > 1)
    rotary = a_rotary(D, 80, dtype, norm, turn)
    q_turned, k_turned = turned(q, k_new, context_lens, rotary)
    k_before, v_before = k_layer.clone(), v_layer.clone()
    out = attend_and_append(q, k_layer, v_layer, table, context_lens, longest, k_new, v_new, rotary)
    cached = [x[:-1].to(dtype).double() for x in case.k]
    keys = [torch.cat([old, new.cpu()[None]]) for old, new in zip(cached, k_turned, strict=True)]
    values = [x.to(dtype).double() for x in case.v]
    right = torch.stack([attention(*one) for one in zip(q_turned.cpu(), keys, values, strict=True)])
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(out.cpu().double(), right, atol=tolerance, rtol=tolerance)
    blocks, slots = table.gather(1, (context_lens // block_size)[:, None])[:, 0].long(), context_lens % block_size
    torch.testing.assert_close(k_layer[blocks, :, slots].double(), k_turned, atol=tolerance, rtol=tolerance)
    assert torch.equal(v_layer[blocks, :, slots], v_new)
    for cache, before, new in ((k_layer, k_before, k_layer), (v_layer, v_before, v_layer)):
        before[blocks, :, slots] = new[blocks, :, slots]
        torch.testing.assert_close(cache, before, equal_nan=True, atol=0, rtol=0)


# -- engines ------------------------------------------------------------------------------------------------------

SMALL = {"vocab_size": 192, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 64}
SMALL |= {"max_position_embeddings": 40, "initializer_range": 0.3}


def heads(query, kv, **more):
    return SMALL | {"num_attention_heads": query, "num_key_value_heads": kv} | more


FAMILY = {
    "multi-head": (LlamaForCausalLM, LlamaConfig(**heads(3, 3, head_dim=32))),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig(
            **heads(6, 2, head_dim=64, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
            rope_parameters=LLAMA3,
        ),
    ),
    "multi-query": (Qwen2ForCausalLM, Qwen2Config(**heads(4, 1, tie_word_embeddings=True))),
    "wide heads": (Qwen3ForCausalLM, Qwen3Config(**heads(4, 2, head_dim=128))),
    "a layer without RoPE": (
        SmolLM3ForCausalLM,
        SmolLM3Config(**heads(6, 2, no_rope_layers=[1, 0], pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    ),
}
LENGTHS, NEW = [1, 4, 15], 4


class Ops069(ops.LayerOps):
    """With the kernel."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.add_norm = add_norm


class Ops070(l070.LayerOps):
    """On a CPU, too."""

    def kernels_on(self, device, dtype):
        return super().kernels_on(device, dtype) or FusedLinears(device, dtype)


class Ops071(five_kernels.LayerOps):
    """On a CPU, too."""

    def kernels_on(self, device, dtype):
        return super().kernels_on(device, dtype) or FusedLinears(device, dtype)


def parts_of(number):
    return lesson(number).after.with_(forward=Forward, ops={"069": Ops069, "070": Ops070, "071": Ops071}[number])


@pytest.fixture(scope="module")
def pair(request, model):
    """A member with random weights, of the engine and of transformers."""
    _, config = FAMILY[request.param]
    hf = random_hf(*FAMILY[request.param])
    weights = {name.removeprefix("model."): weight.data.to(DEVICE) for name, weight in hf.named_parameters()}
    return Llama(shape_of(config.to_dict(), "small"), weights, model.tokenizer, "small"), hf


def prompts_of(lengths):
    return [[(7 + 31 * n + 11 * i) % 192 for i in range(n)] for n in lengths]


def engine_of(model, number, **config):
    return InferenceEngine(model, EngineConfig(max_batch_size=3, max_seq_len=40, **config), parts_of(number))


def tokens_of(engine, prompts, most=NEW):
    params = SamplingParams(max_new_tokens=most, stop_on_eos=False)
    return [result.token_ids for result in engine.generate(prompts, params)]


RUNGS = [("069", 16), ("070", 1), ("071", 4)]  # with the size of a block


@pytest.mark.parametrize(
    ("pair", "number", "block_size"),
    [*(("llama3", *rung) for rung in RUNGS[:2]), *((member, *RUNGS[2]) for member in FAMILY)],
    indirect=["pair"],
)
def test_greedy_tokens_are_those_of_transformers(pair, number, block_size):
    model, hf = pair
    engine = engine_of(model, number, block_size=block_size)
    made = engine.decode_step.runner.work.forward.model.ops
    assert number == "069" or len(made.maps.maps) == 4 * model.shape.num_layers + 1
    expected = [greedy(hf, prompt, NEW) for prompt in prompts_of(LENGTHS)]
    assert len({token for tokens in expected for token in tokens}) > 7
    assert tokens_of(engine, prompts_of(LENGTHS)) == expected


@pytest.mark.parametrize("pair", ["llama3", "multi-query"], indirect=True)
def test_preemptions_forks_and_known_prefixes_at_071(pair):
    """The pool has room for two of three requests; a fork and a request that begins alike share blocks."""
    model, hf = pair
    engine = engine_of(model, "071", block_size=4, num_blocks=9)
    asked = prompts_of([9, 9, 10])
    expected = [greedy(hf, prompt, NEW) for prompt in asked]
    assert tokens_of(engine, asked) == expected
    session = engine.new_session(asked[0], SamplingParams(max_new_tokens=NEW, stop_on_eos=False))
    logits = engine.prefill([session])
    assert session.num_cached_tokens == 9
    engine.take_tokens([session], logits)
    both = [session, engine.fork(session)]
    engine.take_tokens(both, engine.decode_step_sessions(both))
    assert [one.completion_ids for one in both] == [expected[0][:2]] * 2
