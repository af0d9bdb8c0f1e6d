"""What the compiler makes of the kernels, without a GPU: the interpreter takes some code that the compiler does not.

The kernels are compiled in a process of their own, because Triton decides between the two when it is imported.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rosecourse.kernels.add_norm import add_norm
from rosecourse.kernels.appending_attention import attend_and_append
from rosecourse.kernels.choose import choose
from rosecourse.kernels.kv_append import kv_append_by_table
from rosecourse.kernels.launch import Launch
from rosecourse.kernels.paged_attention import paged_attention_decode

SMALL_GPU = GPUTarget("cuda", 86, 32)
SHARED_MEMORY = 99 * 1024  # bytes that a program may have there
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}


def attention(attend, dtype=torch.float16, group=1, D=64, block_size=64, max_blocks=16, longest=100, B=2):
    """A call of attention, whose tensors are only looked at: their numbers are never read."""
    caches = torch.zeros(2, 3, 2, block_size, D, dtype=dtype)
    q, k, v = (torch.zeros(B, heads, D, dtype=dtype) for heads in (2 * group, 2, 2))
    attend(q, *caches, torch.zeros(B, max_blocks, dtype=torch.int64), torch.zeros(B, dtype=torch.int64), longest, k, v)


def append():
    caches = torch.zeros(2, 3, 2, 16, 20)
    k = torch.zeros(2, 2, 20)
    kv_append_by_table(*caches, k, k, torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))


def normalise(dtype, C):
    x, weight = torch.zeros(3, C, dtype=dtype), torch.ones(C, dtype=dtype)
    add_norm(x, x.clone(), weight, weight, 1e-5)


def end(dtype, V, width):
    counts = torch.zeros(3, 2, dtype=torch.int64)
    choose(torch.zeros(2, width, dtype=dtype)[:, :V], *counts)


CALLS = {
    "attention": lambda: attention(paged_attention_decode),
    "append": append,
    "appending": lambda: attention(attend_and_append),
    "appending in parts": lambda: attention(attend_and_append, longest=1024),
    "appending, block by block": lambda: attention(attend_and_append, block_size=8, D=80, group=3),
    "appending, a long table": lambda: attention(attend_and_append, max_blocks=1025, D=12),
    "appending, a table of one block": lambda: attention(attend_and_append, max_blocks=1, block_size=16, D=20),
    "appending, many query heads": lambda: attention(attend_and_append, group=17, D=128),
    "appending, large heads": lambda: attention(attend_and_append, D=256),
    "appending in float32": lambda: attention(attend_and_append, torch.float32),
    "appending large heads in float32": lambda: attention(attend_and_append, torch.float32, group=8, D=128),
    "norm": lambda: normalise(torch.float16, 768),
    "norm of odd rows": lambda: normalise(torch.float32, 5),
    "end": lambda: end(torch.float16, 50257, 50432),
    "end of odd rows": lambda: end(torch.float32, 5, 5),
    "end in bfloat16": lambda: end(torch.bfloat16, 50257, 50257),
}


def compiled_for_a_gpu(kernel: Any, *arguments: Any, grid: Any, num_warps: int, **constants: Any) -> Any:
    """In the place of `JITFunction.warmup`, which wants a GPU."""
    signature, aligned = {}, {}
    for number, (parameter, argument) in enumerate(zip(kernel.params, arguments, strict=False)):
        if isinstance(argument, torch.dtype):
            signature[parameter.name] = f"*{TYPES[argument]}"
            if not parameter.do_not_specialize_on_alignment:
                aligned[(number,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(argument, float) else "i32"
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=SMALL_GPU, options={"num_warps": num_warps})


def compile_all() -> None:
    """Print for each call what its kernels take of shared memory, or what the compiler says to them."""
    triton.JITFunction.warmup = compiled_for_a_gpu
    made: list[int] = []
    results: dict[str, list[int] | str] = {}
    with Launch.handed_to(lambda launch, grid, arguments: made.append(launch.kernel.metadata.shared)):
        for name, call in CALLS.items():
            made.clear()
            try:
                call()
                results[name] = list(made)
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    own = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.test_compiler"]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_takes_a_kernel_and_a_small_gpu_has_room_for_it(results, name):
    shared = results[name]
    assert isinstance(shared, list), shared
    assert len(shared) == (2 if name == "appending in parts" else 1), "not the kernels that this call is for"
    assert max(shared) <= SHARED_MEMORY


if __name__ == "__main__":
    compile_all()
