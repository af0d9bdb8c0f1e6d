"""rosecourse doctor: what was found on this machine, and what to do about what is missing."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import click

import rosecourse

from .ending import interrupts_leave
from .late import folding, kernels, kernelspec, load, ops, torch
from .options import Flags, command

NEEDED = (
    *("torch", "triton", "transformers", "safetensors", "numpy", "tqdm", "matplotlib", "pandas", "pygments"),
    *("click", "cloudpickle", "filelock"),
)
REINSTALL = "run `make env`, or `pip install -c constraints.txt -e .`"
OLDEST_PYTHON, NEWEST_TESTED = (3, 11), (3, 13)
ROOT = Path(__file__).resolve().parents[2]  # of a clone
PYPROJECT = ROOT / "pyproject.toml"
VENV = ROOT / ".venv"  # what `make env` makes


class Problem(Exception):
    """What is wrong, and the remedy."""


def check_python() -> str:
    number = sys.version.split()[0]
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise Problem(f"Python {number}: the course needs 3.11 or later; make an environment with one")
    newer = sys.version_info[:2] > NEWEST_TESTED
    return f"Python {number}" + (" (the course is tested with 3.11 to 3.13)" if newer else "")


def check_environment() -> str:
    """Which environment this is; and that of `make env`, where it is there and another one is active."""
    line = activation()
    return f"environment: {sys.prefix}" + (f"; {VENV} is not active: type `{line}`" if line else "")


def activation() -> str | None:
    """What to type to activate the environment of `make env`; None where it is active, or not there, or not whole."""
    scripts = "Scripts" if sys.platform == "win32" else "bin"
    is_whole = any((VENV / scripts / name).is_file() for name in ("rosecourse", "rosecourse.exe"))
    if not is_whole or Path(sys.prefix).resolve() == VENV.resolve():
        return None
    here = VENV / scripts / "activate"
    path = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return str(path) if sys.platform == "win32" else f". {shlex.quote(str(path))}"


def remedy() -> str:
    """What to do about what cannot be imported: nobody is told to install what an inactive environment has."""
    line = activation()
    return f"activate the environment that has it, `{line}` (in fish with `.fish` at its end)" if line else REINSTALL


def check_package(name: str) -> str:
    """The package can be imported, and is as new as ours requires."""
    if name == "triton" and sys.platform != "linux":
        return "triton: not for this system; the torch path is used"
    try:
        installed = version_of(name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        what = "is not installed" if absent else f"cannot be imported ({first_line(error)})"
        raise Problem(f"{name} {what}: {remedy()}") from None
    least = least_version(name)
    if as_numbers(installed) < as_numbers(least):
        raise Problem(f"{name} {installed} is too old, {least} is needed: {remedy()}")
    return f"{name} {installed}"


def version_of(name: str) -> str:
    """The version of a package that can be imported."""
    module = import_module(name)
    try:
        return version(name)
    except PackageNotFoundError:  # a GPU machine's own build, under another name, such as pytorch-triton
        return getattr(module, "__version__", "of unknown version")


def least_version(name: str) -> str:
    """The lower bound that our own package metadata gives; 0 where there is none."""
    try:
        wanted = "\n".join(requires("rosecourse") or [])
    except PackageNotFoundError:  # run from a clone, not installed
        wanted = PYPROJECT.read_text().replace('"', "") if PYPROJECT.is_file() else ""
    bound = re.search(rf"^\s*{name}\s*>=\s*([0-9.]+)", wanted, re.MULTILINE)
    return bound[1] if bound else "0"


def as_numbers(release: str) -> list[int]:
    """2.13.0+cpu as [2, 13, 0]."""
    return [int("".join(filter(str.isdigit, part)) or 0) for part in release.split("+")[0].split(".")]


def check_device() -> str:
    if torch.cuda.is_available():
        return f"device: CUDA, {torch.cuda.get_device_name()}"
    return f"device: CPU, {torch.get_num_threads()} threads (no GPU is needed; recorded GPU runs are in the notebooks)"


def check_triton() -> str:
    if not kernels.TRITON_AVAILABLE:
        return "kernels: plain torch (no Triton for this system)"
    if torch.cuda.is_available():
        return "kernels: Triton"
    return "kernels: plain torch; Triton through its interpreter where a notebook asks for it"


def check_model() -> str:
    """The shipped model loads and generates."""
    try:
        engine = rosecourse.InferenceEngine(rosecourse.load_model())
    except rosecourse.ModelError as error:
        raise Problem(f"{error}; get data/tiny-gpt2 back with `git checkout data`") from None
    (result,) = engine.generate("My dear", rosecourse.SamplingParams(max_new_tokens=5))
    if result.finish_reason == "error":
        raise Problem("the shipped model makes NaN; get data/tiny-gpt2 back with `git checkout data`")
    return f'shipped model: goes on after "My dear", by {len(result.token_ids)} tokens'


def check_graphs() -> str:
    """A decode step is one graph where there is a GPU, and what that and the padded vocabulary take of its memory."""
    if not torch.cuda.is_available():
        return "decode steps: launched one operation after another (CUDA graphs need a GPU)"
    runner = rosecourse.InferenceEngine(rosecourse.load_model()).decode_step.runner
    if not runner.graphs:
        raise Problem("decode steps run without CUDA graphs, which is slower: free some of the GPU's memory, or update")
    graphs = f"{len(runner.graphs)} CUDA graphs, for up to {runner.buckets[-1]} requests"
    shape = load.RANDOM_SHAPES["gpt2"]
    copy = f"{ops.padded_bytes(shape.vocab_size, shape.width, torch.float16) / 1e6:.0f} MB for GPT-2 in float16"
    return f"decode steps: {graphs}, in {runner.memory_bytes / 1e6:.0f} MB, and a padded vocabulary, {copy}"


def check_products() -> str:
    """Whose matrix products a decode step has, and what our own take of the memory."""
    if not torch.cuda.is_available():
        return "matrix products: the library's (our own, of lesson 070, are for a GPU)"
    ours = rosecourse.BEST.ops(rosecourse.load_model(), rosecourse.EngineConfig()).fused
    if ours is None:
        return "matrix products: the library's (our own need Triton, and shared memory for their tiles)"
    folded = folding.folded_bytes(load.without_numbers(load.RANDOM_SHAPES["gpt2"], torch.float16)) / 1e6
    return (
        f"matrix products: our own, for up to {ours.most_rows} rows; their weights, with norms folded in, take "
        f"{folded:.0f} MB more for GPT-2 in float16"
    )


def check_kernel() -> str:
    """The notebooks' kernel is a Python that can import the package."""
    try:
        spec = kernelspec.KernelSpecManager().get_kernel_spec("python3")
    except Exception as error:
        raise Problem(f"no notebook kernel `python3` ({type(error).__name__}): {remedy()}") from None
    python = spec.argv[0] if Path(spec.argv[0]).is_absolute() else sys.executable  # Jupyter takes its own for `python`
    code = "import ipykernel, rosecourse, sys; print(sys.version.split()[0])"
    try:  # -P: not from the current folder, which a notebook does not have
        number = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise Problem("the notebook kernel `python3` cannot import rosecourse: start Jupyter with `make lab`") from None
    return f"notebook kernel: python3, Python {number}"


def checks() -> list[tuple[str, Callable[[], str]]]:
    """What is checked, by name."""
    packages = [(name, partial(check_package, name)) for name in NEEDED]
    own = [("device", check_device), ("triton", check_triton), ("model", check_model), ("graphs", check_graphs)]
    here = [("python", check_python), ("environment", check_environment)]
    return [*here, *packages, *own, ("products", check_products), ("kernel", check_kernel)]


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def finding(name: str, check: Callable[[], str]) -> tuple[str, str]:
    """What a check says, and whether that is OK or FAIL."""
    try:
        with interrupts_leave():  # checks import: an interrupt is no finding
            return "OK", check()
    except Problem as problem:
        return "FAIL", str(problem)
    except Exception as error:  # a check that breaks is a finding too
        return "FAIL", f"{name}: {first_line(error)}: {remedy()}"


@command
def doctor(flags: Flags) -> int:
    """Say what is missing here, and what to do.

    The exit code is 0 if all is well, 1 if not.
    """
    failed = 0
    for name, check in checks():
        verdict, said = finding(name, check)
        failed += verdict == "FAIL"
        click.echo(f"[{verdict}] {said}")
    click.echo("All is well." if not failed else f"{failed} to mend.")
    return min(failed, 1)
