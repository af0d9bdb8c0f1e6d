"""What the compiler makes of the kernels, without a GPU: the interpreter takes some code that the compiler does not."""

import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
import triton

from rosecourse.kernels.compile import compiled
from rosecourse.kernels.launch import Launch
from rosecourse.kernels.tiles import SCRATCH, Tiles
from tests.kernels.compiling import CALLS, CARDS, PARTS


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """Gives what `compiling` prints under a name, from a process of its own, which Triton gives its compiler."""
    own = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_INTERPRET": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kernels.compiling"], env=os.environ | own, stdout=subprocess.PIPE
    )
    found = {}

    def wait_for(name):
        while name not in found:
            line = process.stdout.readline()
            assert line, "the compiler's process has ended"
            found.update(json.loads(line))
        return found[name]

    yield wait_for
    process.kill()
    process.communicate()


@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_takes_a_kernel_that_fits_a_small_gpu(facts, name):
    made = facts(name)
    assert not [one["error"] for one in made if "error" in one]
    assert len(made) == (2 if name == "appending in parts" else 1), "not the kernels that this call is for"
    assert max(one["shared"] for one in made) <= CARDS["RTX 3090"].shared_memory


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_kernel_of_a_step_of_small_products(facts, part):
    """It fits, and it waits where it has to."""
    (made,) = facts(str(part))
    assert "error" not in made, made["error"]
    constants = made["constants"]
    assert made["shared"] <= CARDS[part.card].shared_memory
    if "BM" in constants:  # `tiles_for` relies on it
        tiles = Tiles(*[constants.get(name, 1) for name in ("BM", "BN", "BK", "SPLITS", "STAGES")], warps=0)
        assert made["shared"] <= tiles.bytes_for(getattr(torch, part.dtype).itemsize) + SCRATCH
    if part.pdl:
        early, late = around_the_wait(accesses(made["ptx"], made["parameters"]))
        assert early == READS[part.kernel][0]
        assert late >= READS[part.kernel][1]
    else:
        assert "griddepcontrol" not in made["ptx"]
        assert "prefetch" not in made["ptx"]


# -- what a kernel does with memory, in which order, read from its PTX ----------------------------------------------

WEIGHTS = {("prefetch", "w_ptr"), ("ld", "bias_ptr")}
# Of each kernel, what it reads before the wait, and what the kernels before it write.
NORM = WEIGHTS | {("ld", "colsum_ptr")}, {"x_ptr", "stats_ptr"}
SUM = WEIGHTS, {"x_ptr", "out_ptr"}
READS = {
    "embed": (set(), {"token_ids_ptr", "positions_ptr"}),
    "qkv": NORM,
    "attention": (
        {("ld", "table_ptr"), ("ld", "lens_ptr"), ("cp", "k_cache_ptr"), ("cp", "v_cache_ptr")},
        {"q_ptr", "k_new_ptr", "v_new_ptr"},
    ),
    "projection": SUM,
    "fc": NORM,
    "fc projection": SUM,
    "head": (set(), NORM[1]),
    "choose": (set(), {"best_ptr", "best_id_ptr", "lens_ptr"}),
}
WAIT, LAUNCH = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
INSTRUCTION = re.compile(r"(@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*?);")
TOUCH = ("ld.", "st.", "atom.", "red.", "cp.async", "prefetch")  # memory
REGISTER = re.compile(r"%[a-z]+\d+")


class Access(NamedTuple):
    """An instruction that touches global memory, and the kernel's pointers that its address was made of."""

    operation: str
    pointers: frozenset[str] = frozenset()


def accesses(ptx: str, parameters: list[str]) -> list[Access]:
    """In the order in which they stand, with WAIT and LAUNCH between them.

    parameters: the names of all, in their order; those of pointers end with _ptr. Lines are read once, from top to
    bottom: of an address that changes in a loop is known what it was made of before.
    """
    names, found = dict(enumerate(parameters)), []
    made_of: dict[str, frozenset[str]] = {}  # register -> pointers

    def together(text: str) -> frozenset[str]:
        return frozenset().union(*[made_of.get(register, frozenset()) for register in REGISTER.findall(text)])

    for line in ptx.splitlines():
        if line.strip().startswith((WAIT, LAUNCH)):
            found.append(Access(line.split(";")[0].strip()))
        elif match := INSTRUCTION.match(line.split("//")[0].strip()):
            condition, operation, operands = match.groups()
            target, _, rest = operands.partition(",")
            if operation.startswith("ld.param"):
                name = names.get(int(re.search(r"_param_(\d+)", rest)[1]), "scratch_ptr")
                made_of[target.strip()] = frozenset({name} if name.endswith("_ptr") else ())
            elif operation.startswith(TOUCH) and ".global" in operation:
                found.append(Access(operation, together(re.findall(r"\[([^]]*)\]", operands)[-1])))
            elif not operation.startswith("ld"):  # computed
                made_of |= dict.fromkeys(REGISTER.findall(target), together(operands if condition else rest))
    return found


def around_the_wait(found: list[Access]) -> tuple[set[tuple[str, str]], set[str]]:
    """How which memory is touched before the wait, and which memory after it."""
    at = found.index(Access(WAIT))
    assert found[at + 1] == Access(LAUNCH), "the next kernel may start once this one has waited"
    before, after = found[:at], found[at + 2 :]
    early = {(access.operation.split(".")[0], pointer) for access in before for pointer in access.pointers or ["?"]}
    return early, {pointer for access in after for pointer in access.pointers}


# -- what is compiled once, and what is left to Triton's JIT --------------------------------------------------------


class Kernel(triton.JITFunction):
    """Its binary is what it was asked to compile."""

    __hash__, __eq__ = object.__hash__, object.__eq__

    def __init__(self):
        self.arg_names = ["x_ptr", "size", "H", "D"]

    def warmup(self, *arguments, **options):
        return arguments, options


CPU = torch.device("cpu")


def test_an_aligned_kernel_is_compiled_once_for_its_types():
    launch = compiled(Kernel(), (torch.float16, 0), (3, 8), CPU, num_warps=2, launch_pdl=True)
    assert isinstance(launch, Launch)
    assert launch.kernel == ((torch.float16, 0), {"grid": (1,), "num_warps": 2, "launch_pdl": True, "H": 3, "D": 8})
    jit = compiled(kernel := Kernel(), (torch.float16, 0), (3, 8), CPU, aligned=False)
    assert jit.kernel is kernel
    assert launch.constants == jit.constants == (3, 8)
