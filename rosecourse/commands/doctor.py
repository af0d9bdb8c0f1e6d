"""rosecourse doctor: what was found on this machine, and what to do about what is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

import rosecourse

from ..checks import told
from ..errors import ConfigError
from .ending import interrupts_leave
from .late import torch
from .options import Flags, command

# What pyproject.toml requires, with the lower bounds.
NEEDED = {"torch": "2.11", "triton": "3.6", "transformers": "5.17", "safetensors": "0.8", "numpy": "1.26"}
NEEDED |= {"tqdm": "4.66", "matplotlib": "3.10", "pandas": "2.2.2", "pygments": "2.17", "click": "8.4"}
NEEDED |= {"cloudpickle": "3.0"}
REMEDY = "run `make env` and activate it, `. .venv/bin/activate`; or `pip install -c constraints.txt -e .`"
MODEL_AGAIN = "get data/ back with `git checkout data`"


def check_python() -> str:
    newer = " (the course is tested with 3.11 to 3.13)" if sys.version_info[:2] > (3, 13) else ""
    return f"Python {sys.version.split()[0]}{newer}, environment {sys.prefix}"


def check_package(name: str) -> str:
    """The package can be imported, and is as new as ours requires."""
    if name == "triton" and sys.platform != "linux":
        return "triton: not for this system; the torch path is used"
    try:
        module = import_module(name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        what = "is not installed" if absent else f"cannot be imported ({told(error)})"
        raise ConfigError(f"{name} {what}: {REMEDY}") from None
    try:
        installed = version(name)
    except PackageNotFoundError:  # a GPU machine's own build, under another name, such as pytorch-triton
        installed = getattr(module, "__version__", "of unknown version")
    found, least = ([int(n) for n in re.findall(r"\d+", one.split("+")[0])] for one in (installed, NEEDED[name]))
    if found < least:
        raise ConfigError(f"{name} {installed} is too old, {NEEDED[name]} is needed: {REMEDY}")
    return f"{name} {installed}"


def check_model(name: str) -> str:
    """A shipped model loads and generates."""
    try:
        engine = rosecourse.InferenceEngine(rosecourse.load_model(name))
    except rosecourse.ModelError as error:
        raise ConfigError(f"{error}; {MODEL_AGAIN}") from None
    (result,) = engine.generate("My dear", rosecourse.SamplingParams(max_new_tokens=5))
    if result.finish_reason == "error":
        raise ConfigError(f"the shipped model makes NaN; {MODEL_AGAIN}")
    return f'{name}: goes on after "My dear", by {len(result.token_ids)} tokens'


def check_device() -> str:
    """The device, and that a decode step is one graph where it is a GPU."""
    if not torch.cuda.is_available():
        return f"device: CPU, {torch.get_num_threads()} threads (no GPU is needed; recorded runs are in the notebooks)"
    runner = rosecourse.InferenceEngine(rosecourse.load_model()).decode_step.runner
    if not runner.graphs:
        raise ConfigError("decode steps run without CUDA graphs, which is slower: free GPU memory, or update")
    graphs = f"{len(runner.graphs)} CUDA graphs in {runner.memory_bytes / 1e6:.0f} MB"
    return f"device: CUDA, {torch.cuda.get_device_name()}; decode steps: {graphs}"


CHECKS: dict[str, Callable[[], str]] = {
    "python": check_python,
    **{name: partial(check_package, name) for name in NEEDED},
    **{name: partial(check_model, name) for name in ("tiny-gpt2", "tiny-llama")},
    "device": check_device,
}


@command
def doctor(flags: Flags) -> int:
    """Say what is missing here, and what to do.

    The exit code is 0 if all is well, 1 if not.
    """
    failed = 0
    for name, check in CHECKS.items():
        try:
            with interrupts_leave():  # checks import: an interrupt is no finding
                line = f"[OK] {check()}"
        except Exception as error:  # a check that breaks is a finding too
            failed += 1
            line = f"[FAIL] {error if isinstance(error, ConfigError) else f'{name}: {told(error)}: {REMEDY}'}"
        click.echo(line)
    click.echo("All is well." if not failed else f"{failed} to mend.")
    return min(failed, 1)
