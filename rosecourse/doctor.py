"""python -m rosecourse.doctor: what was found on this machine, and what to do about what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version

NEEDED = ("torch", "triton", "transformers", "safetensors", "numpy", "tqdm", "matplotlib", "pandas")
REINSTALL = "run `make env`, or `pip install -c constraints.txt -e .`"


class Problem(Exception):
    """What is wrong, and the remedy."""


def check_python() -> str:
    found = sys.version.split()[0]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise Problem(f"Python {found}: the course needs 3.11 to 3.13; make an environment with one of these")
    return f"Python {found}"


def check_package(name: str) -> str:
    """The package is there, can be imported, and is as new as ours asks for."""
    if name == "triton" and sys.platform != "linux":
        return "triton: not for this system; the torch path is used"
    try:
        found = version(name)
        import_module(name)
    except PackageNotFoundError:
        raise Problem(f"{name} is not installed: {REINSTALL}") from None
    except Exception as error:
        raise Problem(
            f"{name} is installed and cannot be imported ({type(error).__name__}: {error}): {REINSTALL}"
        ) from None
    least = least_version(name)
    if as_numbers(found) < as_numbers(least):
        raise Problem(f"{name} {found} is too old, {least} is needed: {REINSTALL}")
    return f"{name} {found}"


def least_version(name: str) -> str:
    """The lower bound that our own package metadata gives; 0 where there is none, or we are not installed."""
    try:
        for requirement in requires("rosecourse") or []:
            wanted = requirement.split(";")[0]
            if wanted.replace("_", "-").split(">=")[0].strip() == name.replace("_", "-") and ">=" in wanted:
                return wanted.split(">=")[1].strip()
    except PackageNotFoundError:
        pass
    return "0"


def as_numbers(found: str) -> list[int]:
    """2.13.0+cpu as [2, 13, 0]."""
    return [int("".join(filter(str.isdigit, part)) or 0) for part in found.split("+")[0].split(".")]


def check_device() -> str:
    torch = import_module("torch")
    if torch.cuda.is_available():
        return f"device: CUDA, {torch.cuda.get_device_name()}"
    return f"device: CPU, {torch.get_num_threads()} threads (no GPU is needed; recorded GPU runs are in the notebooks)"


def check_triton() -> str:
    torch = import_module("torch")
    kernels = import_module("rosecourse.kernels")
    if not kernels.TRITON_AVAILABLE:
        return "kernels: plain torch (no Triton for this system)"
    if torch.cuda.is_available():
        return "kernels: Triton"
    return "kernels: plain torch; Triton through its interpreter where a notebook asks for it"


def check_model() -> str:
    """The shipped model loads and generates."""
    rosecourse = import_module("rosecourse")
    try:
        engine = rosecourse.InferenceEngine(rosecourse.load_model(device="cpu"))
    except rosecourse.ModelError as error:
        raise Problem(f"{error}; get data/tiny-gpt2 back with `git checkout data`") from None
    (result,) = engine.generate("My dear", rosecourse.SamplingParams(max_new_tokens=5))
    return f"shipped model: My dear ...{result.text!r}"


def check_kernel() -> str:
    """The notebooks' kernel is a Python that can import the package."""
    try:
        specs = import_module("jupyter_client.kernelspec").KernelSpecManager()
        spec = specs.get_kernel_spec("python3")
    except Exception as error:
        raise Problem(f"no notebook kernel `python3` ({type(error).__name__}): run `make env`") from None
    python = spec.argv[0] if "python" not in spec.argv[0] or "/" in spec.argv[0] else sys.executable
    code = "import rosecourse, sys, json; print(json.dumps(sys.version.split()[0]))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode:
        raise Problem("the notebook kernel `python3` cannot import rosecourse: start Jupyter with `make lab`")
    return f"notebook kernel: python3, Python {json.loads(found.stdout)}"


def checks() -> Iterator[Callable[[], str]]:
    yield check_python
    for name in NEEDED:
        yield lambda name=name: check_package(name)
    yield from (check_device, check_triton, check_model, check_kernel)


def main() -> int:
    """Run all checks; returns 1 if one failed."""
    failed = 0
    for check in checks():
        try:
            print(f"[OK] {check()}")
        except Problem as problem:
            failed += 1
            print(f"[FAIL] {problem}")
        except Exception as error:  # a check that breaks is a finding, too
            failed += 1
            print(f"[FAIL] {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}: {REINSTALL}")
    print("All is well." if not failed else f"{failed} to mend.")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
