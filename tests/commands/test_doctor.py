"""doctor: all well, or something missing or odd; it says what, and does not fall over."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from packaging.requirements import Requirement

from rosecourse import ConfigError
from rosecourse.commands import doctor
from rosecourse.models.load import SHIPPED
from tests.support.commands import doctor as called
from tests.support.failing import sick_model

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def raises(error):
    def work(*_):
        raise error

    return work


def test_doctor_looks_for_what_the_package_needs():
    needed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    bounds = {need.name: str(need.specifier).removeprefix(">=") for need in map(Requirement, needed)}
    assert bounds == doctor.NEEDED


@pytest.mark.parametrize("version", [None, raises(PermissionError("pyproject.toml"))], ids=["well", "a check breaks"])
def test_doctor_has_a_line_for_each_check_and_a_sum(capsys, monkeypatch, version):
    if version:
        monkeypatch.setattr(doctor, "version", version)
    assert called.main([]) == bool(version)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(doctor.CHECKS)
    failed = [line for line in lines if not line.startswith("[OK] ")]
    told = [f"[FAIL] {name}: PermissionError: pyproject.toml: {doctor.REMEDY}" for name in doctor.NEEDED]
    assert failed == (told if version else [])
    assert last == (f"{len(told)} to mend." if version else "All is well.")


def test_package_when_old_broken_or_renamed_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.10.1+cpu")
    with pytest.raises(ConfigError, match=r"torch 2\.10\.1\+cpu is too old, 2\.11 is needed"):
        doctor.check_package("torch")
    monkeypatch.setattr(doctor, "version", lambda name: "2.11.0")
    assert doctor.check_package("torch") == "torch 2.11.0"
    monkeypatch.setattr(doctor, "import_module", raises(OSError("libcudart.so: gone\nmore")))
    with pytest.raises(ConfigError, match=r"be imported \(OSError: libcudart.so: gone more\): run `make env`"):
        doctor.check_package("torch")
    monkeypatch.setattr(doctor, "version", raises(PackageNotFoundError))
    monkeypatch.setattr(doctor, "import_module", lambda name: SimpleNamespace(__version__="3.6.0+git12"))
    assert doctor.check_package("triton") == "triton 3.6.0+git12"


@pytest.mark.parametrize(("found", "tested"), [((3, 13, 1), True), ((3, 14, 0), False)])
def test_python_when_newer_than_tested_is_told(monkeypatch, found, tested):
    monkeypatch.setattr(doctor.sys, "version_info", found)
    assert ("is tested with" in doctor.check_python()) != tested


@pytest.mark.parametrize("graphs", [{}, {(8, False): None, (4, False): None}])
def test_graphs_of_a_gpu_are_told(monkeypatch, graphs):
    runner = SimpleNamespace(graphs=graphs, memory_bytes=34 * 10**6)
    engine = SimpleNamespace(decode_step=SimpleNamespace(runner=runner))
    package = SimpleNamespace(load_model=lambda: "a model", InferenceEngine=lambda model: engine)
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "a GPU")
    monkeypatch.setattr(doctor, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(doctor, "rosecourse", package)
    if graphs:
        assert doctor.check_device() == "device: CUDA, a GPU; decode steps: 2 CUDA graphs in 34 MB"
    else:
        with pytest.raises(ConfigError, match="run without CUDA graphs, which is slower: free GPU memory"):
            doctor.check_device()


def test_shipped_model_when_it_is_gone_or_makes_nan_is_told(monkeypatch, model, tmp_path):
    with monkeypatch.context() as patch:
        patch.setitem(SHIPPED, "tiny-gpt2", tmp_path / "gone")
        with pytest.raises(ConfigError, match="git checkout data"):
            doctor.check_model("tiny-gpt2")
    monkeypatch.setattr("rosecourse.load_model", lambda name: sick_model(model, 0), raising=False)
    with pytest.raises(ConfigError, match="the shipped model makes NaN"):
        doctor.check_model("tiny-gpt2")


def test_doctor_runs_where_nothing_but_click_is_installed(tmp_path):
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    env = os.environ | {"PYTHONPATH": f"{PYPROJECT.parent}:{tmp_path}"}
    argv = [sys.executable, "-S", "-m", "rosecourse", "doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("[OK] Python")
    assert f"[FAIL] torch is not installed: {doctor.REMEDY}" in lines
    assert any(line.startswith("[FAIL] device: ModuleNotFoundError: ") for line in lines)
