"""Kernels compiled for GPUs that are not there, by Triton's own compiler: what it made of each, as JSON.

This runs in a process of its own: Triton decides between its compiler and its interpreter when it is imported.
"""

import json
import math
from functools import partial, partialmethod
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rosecourse.kernels.add_norm import add_norm
from rosecourse.kernels.appending_attention import attend_and_append
from rosecourse.kernels.choose import choose
from rosecourse.kernels.fused import Folded, FusedLinears
from rosecourse.kernels.kv_append import kv_append_by_table
from rosecourse.kernels.launch import Launch
from rosecourse.kernels.paged_attention import paged_attention_decode

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}


class Card(NamedTuple):
    capability: int  # 86 is 8.6
    shared_memory: int  # bytes that a program may have
    processors: int


CARDS = {"H200": Card(90, 232448, 132), "RTX 3090": Card(86, 99 * 1024, 82), "RTX 5090": Card(120, 99 * 1024, 170)}


def facts_of(kernel: Any, arguments: tuple, target: GPUTarget, options: dict, constants: dict) -> dict[str, Any]:
    signature, aligned = {}, {}
    for number, (parameter, argument) in enumerate(zip(kernel.params, arguments, strict=False)):
        if isinstance(argument, torch.dtype):
            signature[parameter.name] = f"*{TYPES[argument]}"
            if not parameter.do_not_specialize_on_alignment:
                aligned[(number,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(argument, float) else "i32"
    source = ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    try:
        made = triton.compile(source, target=target, options=options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    parameters = [parameter.name for parameter in kernel.params][: len(arguments)]
    return {"constants": constants, "parameters": parameters, "shared": made.metadata.shared, "ptx": made.asm["ptx"]}


def compile_for(card: str) -> None:
    """From now on kernels that are not cached are made for this card: when somebody calls them."""

    def warmup(kernel: Any, target: GPUTarget, *arguments: Any, grid: Any, num_warps: int, **constants: Any):
        """In the place of `JITFunction.warmup`, which wants a GPU."""
        options = {"num_warps": num_warps} | ({"launch_pdl": True} if constants.pop("launch_pdl", False) else {})
        return partial(facts_of, kernel, arguments, target, options, constants)

    triton.JITFunction.warmup = partialmethod(warmup, GPUTarget("cuda", CARDS[card].capability, 32))


# -- single kernels -------------------------------------------------------------------------------------------------


def attention(attend, dtype=torch.float16, group=1, D=64, block_size=64, max_blocks=16, longest=50, B=2):
    """A call of attention, whose tensors are only looked at: their numbers are never read."""
    caches = torch.zeros(2, 3, 2, block_size, D, dtype=dtype)
    q, k, v = (torch.zeros(B, heads, D, dtype=dtype) for heads in (2 * group, 2, 2))
    attend(q, *caches, torch.zeros(B, max_blocks, dtype=torch.int64), torch.zeros(B, dtype=torch.int64), longest, k, v)


def append():
    caches, k = torch.zeros(2, 3, 2, 16, 20), torch.zeros(2, 2, 20)
    kv_append_by_table(*caches, k, k, torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))


def normalise():
    x, weight = torch.zeros(3, 768, dtype=torch.float16), torch.ones(768, dtype=torch.float16)
    add_norm(x, x.clone(), weight, weight, 1e-5)


def end():
    choose(torch.zeros(2, 50432, dtype=torch.float16)[:, :50257], *torch.zeros(3, 2, dtype=torch.int64))


CALLS = {
    "attention": partial(attention, paged_attention_decode),
    "append": append,
    "appending in parts": partial(attention, attend_and_append, longest=1024),
    "appending, block by block": partial(attention, attend_and_append, block_size=8, D=80, group=3),
    "appending, a long table": partial(attention, attend_and_append, max_blocks=1025, D=12),
    "appending, many query heads": partial(attention, attend_and_append, group=17, D=128),
    "appending large heads in float32": partial(attention, attend_and_append, torch.float32, group=8, D=256),
    "norm": normalise,
    "end": end,
}

# -- the kernels of a step with small products ----------------------------------------------------------------------

# Inputs of a layer, what is between its last two products, the vocabulary, positions.
SHAPES = {"GPT-2 124M": (768, 3072, 50257, 1024), "odd": (35, 141, 211, 9)}
STEP = ("embed", "qkv", "attention", "projection", "fc", "fc projection", "head", "choose")


class Part(NamedTuple):
    """A kernel of a step of so many rows on a card. dtype: by its name in torch."""

    card: str
    dtype: str
    pdl: bool
    rows: int
    shape: str
    kernel: str


GPT2 = "GPT-2 124M"
# Each card, dtype and kernel, each height of a tile, and each set of tuned ones.
PARTS = [
    *(Part("H200", "float16", True, 64, GPT2, kernel) for kernel in STEP),
    Part("H200", "float16", True, 17, GPT2, "fc"),
    Part("H200", "float16", True, 128, GPT2, "head"),
    Part("H200", "bfloat16", True, 1, GPT2, "qkv"),
    Part("H200", "bfloat16", False, 1, "odd", "embed"),
    Part("H200", "float32", True, 65, "odd", "projection"),
    Part("H200", "float32", True, 63, GPT2, "fc projection"),
    Part("RTX 3090", "float16", False, 128, GPT2, "fc"),
    Part("RTX 3090", "bfloat16", False, 65, GPT2, "qkv"),
    Part("RTX 3090", "float32", False, 1, GPT2, "choose"),
    Part("RTX 5090", "float16", True, 65, GPT2, "fc projection"),
]


def step_of(card: str, dtype_name: str, pdl: bool, rows: int, shape: str, kernel: str) -> None:
    """A step with one layer. Tensors on `meta` have no memory; the device's number keeps binaries of cards apart."""
    (C, inner, V, context), dtype = SHAPES[shape], getattr(torch, dtype_name)
    linears = FusedLinears(torch.device("meta", CARDS[card].capability), dtype, pdl)
    linears.shared_memory, linears.processors = CARDS[card].shared_memory, CARDS[card].processors

    def room(*size, dtype=dtype):
        return torch.empty(*size, dtype=dtype, device="meta")

    def weight(outputs, inputs):
        return Folded(room(outputs, inputs), *(room(outputs, dtype=torch.float32) for _ in range(2)))

    counts = [room(rows, dtype=torch.int64) for _ in range(3)]
    x = linears.embed(*counts[:2], room(V, C), room(context, C))
    qkv = linears.norm_linear(x, weight(3 * C, C), 1e-5)
    D = math.gcd(C, 64)
    q, k, v = qkv.view(rows, 3, C // D, D).unbind(1)
    caches = [room(9, C // D, 16, D) for _ in range(2)]
    h = attend_and_append(q, *caches, room(rows, 4, dtype=torch.int64), counts[0], 64, k, v, pdl=pdl)
    x = linears.linear_add(h.flatten(1), weight(C, C), x)
    h = linears.norm_linear(x, weight(inner, C), 1e-5, gelu=True)
    x = linears.linear_add(h, weight(C, inner), x)
    linears.choose(linears.logits(x, weight(V, C), 1e-5), *counts)


def launched(call: Any, *arguments: Any) -> list[Launch]:
    made: list[Launch] = []
    with Launch.handed_to(lambda launch, grid, arguments: made.append(launch)):
        call(*arguments)
    return made


def print_all() -> None:
    """What became of the kernels of each call, by its name, and of each part of a step: a line each."""
    compile_for("RTX 3090")
    for name, call in CALLS.items():
        print(json.dumps({name: [launch.kernel() for launch in launched(call)]}), flush=True)
    for part in PARTS:
        compile_for(part.card)
        launch = launched(step_of, *part)[STEP.index(part.kernel)]
        print(json.dumps({str(part): [launch.kernel()]}), flush=True)


if __name__ == "__main__":
    print_all()
