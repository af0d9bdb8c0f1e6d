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
from tests.support.commands import doctor as called

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def absent(*_):
    raise PackageNotFoundError


def test_it_looks_for_what_the_package_needs():
    needed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    bounds = {need.name: str(need.specifier).removeprefix(">=") for need in map(Requirement, needed)}
    assert bounds == doctor.NEEDED


def test_without_torch_every_line_is_there(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert called.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(doctor.NEEDED) + 4
    assert all(line.startswith(("[OK] ", "[FAIL] ")) for line in lines[:-1])
    assert f"[FAIL] torch is not installed: {doctor.REMEDY}" in lines
    assert any(line.startswith("[FAIL] device: ModuleNotFoundError: ") for line in lines)
    assert lines[-1].endswith(" to mend.")


def test_packages_are_old_broken_or_built_under_another_name(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.10.1+cpu")
    with pytest.raises(ConfigError, match=r"torch 2\.10\.1\+cpu is too old, 2\.11 is needed"):
        doctor.check_package("torch")
    monkeypatch.setattr(doctor, "version", lambda name: "2.11.0")
    assert doctor.check_package("torch") == "torch 2.11.0"

    def broken(name):
        raise OSError("libcudart.so: gone\nmore")

    monkeypatch.setattr(doctor, "import_module", broken)
    with pytest.raises(ConfigError, match=r"be imported \(OSError: libcudart.so: gone more\): run `make env`"):
        doctor.check_package("torch")
    monkeypatch.setattr(doctor, "version", absent)
    monkeypatch.setattr(doctor, "import_module", lambda name: SimpleNamespace(__version__="3.6.0+git12"))
    assert doctor.check_package("triton") == "triton 3.6.0+git12"


@pytest.mark.parametrize(("found", "tested"), [((3, 11, 0), True), ((3, 13, 1), True), ((3, 14, 0), False)])
def test_pythons(monkeypatch, found, tested):
    monkeypatch.setattr(doctor.sys, "version_info", found)
    assert ("is tested with" in doctor.check_python()) != tested


@pytest.mark.parametrize("graphs", [{}, {(8, False): None, (4, False): None}])
def test_the_graphs_of_a_gpu_are_told(monkeypatch, graphs):
    runner = SimpleNamespace(graphs=graphs, memory_bytes=34 * 10**6)
    rosecourse = SimpleNamespace(
        load_model=lambda: "a model",
        InferenceEngine=lambda model: SimpleNamespace(decode_step=SimpleNamespace(runner=runner)),
    )
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "a GPU")
    monkeypatch.setattr(doctor, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(doctor, "rosecourse", rosecourse)
    if graphs:
        assert doctor.check_device() == "device: CUDA, a GPU; decode steps: 2 CUDA graphs in 34 MB"
    else:
        with pytest.raises(ConfigError, match="run without CUDA graphs, which is slower: free GPU memory"):
            doctor.check_device()


def test_a_check_that_breaks_is_told_by_the_name_of_what_it_looked_at(capsys, monkeypatch):
    def unreadable(name):
        raise PermissionError("pyproject.toml")

    monkeypatch.setattr(doctor, "version", unreadable)
    assert called.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"[FAIL] numpy: PermissionError: pyproject.toml: {doctor.REMEDY}" in lines


def test_doctor_finds_all_well(capsys):
    assert called.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "All is well."
    assert all(line.startswith("[OK] ") for line in lines[:-1])
    assert len(lines) == len(doctor.NEEDED) + 4


def test_doctor_runs_where_nothing_but_click_is_installed(tmp_path):
    """Every line is there, each with its remedy."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    env = os.environ | {"PYTHONPATH": f"{PYPROJECT.parent}:{tmp_path}"}
    argv = [sys.executable, "-S", "-m", "rosecourse", "doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert done.stderr == ""
    assert "[FAIL] torch is not installed" in done.stdout
    assert "[OK] Python" in done.stdout


def test_doctor_sees_a_broken_model(monkeypatch, tmp_path):
    monkeypatch.setattr("rosecourse.models.load.SHIPPED_MODEL", tmp_path / "gone")
    with pytest.raises(ConfigError, match="git checkout data"):
        doctor.check_model()
