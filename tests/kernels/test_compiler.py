"""What the compiler makes of the kernels, without a GPU: the interpreter takes some code that the compiler does not.

The kernels are compiled in a process of their own, because Triton decides between the two when it is imported.
"""

from functools import cache
from typing import NamedTuple

import pytest
import torch

from rosecourse.kernels.add_norm import add_norm
from rosecourse.kernels.appending_attention import attend_and_append
from rosecourse.kernels.choose import choose
from rosecourse.kernels.fused import Folded, FusedLinears
from rosecourse.kernels.kv_append import kv_append_by_table
from rosecourse.kernels.launch import Launch
from rosecourse.kernels.paged_attention import paged_attention_decode
from rosecourse.kernels.tiles import Tiles
from tests.kernels.compiling import Compiler, answer_all, compile_for
from tests.kernels.ptx import LAUNCH, WAIT, accesses


class Card(NamedTuple):
    capability: int  # 86 is 8.6
    shared_memory: int  # bytes that a program may have


CARDS = {"H200": Card(90, 232448), "RTX 3090": Card(86, 99 * 1024), "RTX 5090": Card(120, 99 * 1024)}
SMALL = CARDS["RTX 3090"]


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
    "appending, many query heads": lambda: attention(attend_and_append, group=17, D=128),
    "appending, large heads": lambda: attention(attend_and_append, D=256),
    "appending large heads in float32": lambda: attention(attend_and_append, torch.float32, group=8, D=128),
    "norm": lambda: normalise(torch.float16, 768),
    "norm of odd rows": lambda: normalise(torch.float32, 5),
    "end": lambda: end(torch.float16, 50257, 50432),
    "end of odd rows": lambda: end(torch.float32, 5, 5),
}


# -- the kernels of a step with small products --------------------------------------------------------------------

# Inputs of a layer, what is between its last two products, the vocabulary, positions.
SHAPES = {"GPT-2 124M": (768, 3072, 50257, 1024), "odd": (35, 141, 211, 9)}
STEP = ("embed", "qkv", "projection", "fc", "fc projection", "head", "choose")


class Part(NamedTuple):
    """A kernel of a step of so many rows on a card. dtype: by its name in torch."""

    card: str
    dtype: str
    pdl: bool
    rows: int
    shape: str
    kernel: str

    def __str__(self) -> str:
        return "-".join([self.card, self.dtype, "pdl" if self.pdl else "", str(self.rows), self.shape, self.kernel])


@cache
def step_of(card: str, dtype_name: str, pdl: bool, rows: int, shape: str) -> dict[str, Launch]:
    """What a step with one layer launches, by its name in STEP. Tensors on `meta` have no memory.

    The device's number is the compute capability: so each card gets its own binaries.
    """
    compile_for(CARDS[card].capability)
    (C, inner, V, context), dtype = SHAPES[shape], getattr(torch, dtype_name)
    linears = FusedLinears(torch.device("meta", CARDS[card].capability), dtype, pdl)
    linears.shared_memory = CARDS[card].shared_memory

    def room(*size, dtype=dtype):
        return torch.empty(*size, dtype=dtype, device="meta")

    def weight(outputs, inputs):
        return Folded(room(outputs, inputs), *(room(outputs, dtype=torch.float32) for _ in range(2)))

    made = []
    counts = [room(rows, dtype=torch.int64) for _ in range(3)]
    with Launch.handed_to(lambda launch, grid, arguments: made.append(launch)):
        x = linears.embed(*counts[:2], room(V, C), room(context, C))
        linears.norm_linear(x, weight(3 * C, C), 1e-5)
        x = linears.linear_add(room(rows, C), weight(C, C), x)
        h = linears.norm_linear(x, weight(inner, C), 1e-5, gelu=True)
        x = linears.linear_add(h, weight(C, inner), x)
        linears.choose(linears.logits(x, weight(V, C), 1e-5), *counts)
    return dict(zip(STEP, made, strict=True))


# -- the other process --------------------------------------------------------------------------------------------


def compiled(question: str | list) -> list[dict]:
    """What became of the kernels of a call, by its name in CALLS, or of a part of a step."""
    if isinstance(question, list):
        *which, kernel = question
        return [step_of(*which)[kernel].kernel.facts]
    compile_for(SMALL.capability)
    made = []
    with Launch.handed_to(lambda launch, grid, arguments: made.append(launch.kernel.facts)):
        CALLS[question]()
    return made


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    compiler = Compiler("tests.kernels.test_compiler", tmp_path_factory.mktemp("triton"))
    yield compiler
    compiler.close()


@pytest.fixture
def ask(compiler):
    """What became of one part of a step."""

    def ask(part):
        (facts,) = compiler.ask(part)
        assert "error" not in facts, facts["error"]
        return facts

    return ask


@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_takes_a_kernel_that_fits_a_small_gpu(compiler, name):
    made = compiler.ask(name)
    assert not [facts["error"] for facts in made if "error" in facts]
    assert len(made) == (2 if name == "appending in parts" else 1), "not the kernels that this call is for"
    assert max(facts["shared"] for facts in made) <= SMALL.shared_memory


GPT2 = "GPT-2 124M"
STEP_ON_H200 = [Part("H200", "float16", True, 64, GPT2, kernel) for kernel in STEP]
# Each card, dtype and kernel, each height of a tile, and each set of tuned ones.
OTHERS = [
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
WIDE = (".v2.b32", ".v4.b32")  # 8 or 16 bytes of a thread at once


def check(part: Part, facts: dict) -> None:
    """It fits; where its tiles are tuned it keeps its numbers in registers, and stores rows by more than a number at a
    time; it waits where it has to.
    """
    card, dtype, pdl, _, shape, kernel = part
    constants = facts["constants"]
    assert facts["shared"] <= CARDS[card].shared_memory
    if "BM" in constants:  # `tiles.fitting` relies on it: what comes after the product takes the place of its buffers
        tiles = Tiles(*[constants.get(name, 1) for name in ("BM", "BN", "BK", "SPLITS", "STAGES")], warps=0)
        assert facts["shared"] <= tiles.bytes_for(getattr(torch, dtype).itemsize)
    if (card, shape) == ("H200", "GPT-2 124M") and dtype != "float32":
        assert facts["spilled"] == 0
        assert all(store.endswith(WIDE) for store in stores_of_rows(facts))
    if pdl:
        early, late = around_the_wait(facts["ptx"], facts["parameters"])
        assert early == READS[kernel][0]
        assert late >= READS[kernel][1]
    else:
        assert "griddepcontrol" not in facts["ptx"]
        assert "prefetch" not in facts["ptx"]


WEIGHTS = {("prefetch", "w_ptr"), ("ld", "bias_ptr")}
# Of each kernel, what it reads before the wait, and what the kernels before it write.
NORM = WEIGHTS | {("ld", "colsum_ptr")}, {"x_ptr", "stats_ptr"}
SUM = WEIGHTS, {"x_ptr", "out_ptr"}
READS = {
    "embed": (set(), {"token_ids_ptr", "positions_ptr"}),
    "qkv": NORM,
    "projection": SUM,
    "fc": NORM,
    "fc projection": SUM,
    "head": NORM,
    "choose": (set(), {"best_ptr", "best_id_ptr", "lens_ptr"}),
}


def stores_of_rows(facts: dict) -> list[str]:
    """The instructions that store what has a row for each request, and many numbers in it."""
    touched = [one for one in accesses(facts["ptx"], facts["parameters"]) if not isinstance(one, str)]
    stores = [one for one in touched if one.operation.startswith("st.")]
    return [one.operation for one in stores if one.pointers & {"x_ptr", "out_ptr", "logits_ptr"}]


def around_the_wait(ptx: str, parameters: list[str]) -> tuple[set[tuple[str, str]], set[str]]:
    """How which memory is touched before the wait, and which memory after it."""
    found = accesses(ptx, parameters)
    at = found.index(WAIT)
    assert found[at + 1] == LAUNCH, "the next kernel may start once this one has waited"
    before, after = found[:at], found[at + 2 :]
    early = {(access.operation.split(".")[0], pointer) for access in before for pointer in access.pointers or ["?"]}
    return early, {pointer for access in after for pointer in access.pointers}


@pytest.mark.parametrize("part", STEP_ON_H200 + OTHERS, ids=str)
def test_a_kernel_of_a_step_of_small_products(ask, part):
    check(part, ask(part))


if __name__ == "__main__":
    answer_all(compiled)
