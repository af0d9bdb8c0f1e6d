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
import torch as real_torch
from packaging.requirements import Requirement

from rosecourse.commands import doctor
from tests.support.commands import doctor as called

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def absent(*_):
    raise PackageNotFoundError


def test_it_looks_for_what_the_package_needs():
    needed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    assert sorted(doctor.NEEDED) == sorted(Requirement(line).name for line in needed)


def test_without_torch_every_line_is_there(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert called.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(doctor.NEEDED) + 9
    assert all(line.startswith(("[OK] ", "[FAIL] ")) for line in lines[:-1])
    assert f"[FAIL] torch is not installed: {doctor.REINSTALL}" in lines
    assert any(line.startswith("[FAIL] device: ModuleNotFoundError: ") for line in lines)
    assert lines[-1].endswith(" to mend.")


def test_a_package_that_is_broken(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so: gone\nmore")

    monkeypatch.setattr(doctor, "import_module", broken)
    with pytest.raises(doctor.Problem, match=r"be imported \(OSError: libcudart.so: gone\): run `make env`"):
        doctor.check_package("torch")


def test_a_build_under_another_name(monkeypatch):
    monkeypatch.setattr(doctor, "version", absent)
    monkeypatch.setattr(doctor, "import_module", lambda name: SimpleNamespace(__version__="3.6.0+git12"))
    assert doctor.check_package("triton") == "triton 3.6.0+git12"


@pytest.mark.parametrize("requires", [absent, lambda _: ["torch>=2.11", 'triton>=3.6; sys_platform == "linux"']])
def test_lower_bounds_are_those_of_pyproject_installed_or_not(monkeypatch, requires):
    monkeypatch.setattr(doctor, "requires", requires)
    assert [doctor.least_version(name) for name in ("torch", "triton", "numpy")] == ["2.11", "3.6", "0"]


@pytest.mark.parametrize(
    ("found", "fits"),
    [((3, 10, 14), False), ((3, 11, 0), True), ((3, 13, 1), True), ((3, 14, 0), True)],
)
def test_pythons(monkeypatch, found, fits):
    monkeypatch.setattr(doctor.sys, "version_info", found)
    if fits:
        assert ("is tested with" in doctor.check_python()) == (found >= (3, 14))
    else:
        with pytest.raises(doctor.Problem, match=r"needs 3\.11 or later"):
            doctor.check_python()


@pytest.mark.parametrize("graphs", [{}, {(8, False): None, (4, False): None}])
def test_the_graphs_of_a_gpu_and_their_memory_are_told(monkeypatch, graphs):
    runner = SimpleNamespace(graphs=graphs, buckets=(4, 8), memory_bytes=34 * 10**6)
    rosecourse = SimpleNamespace(
        load_model=lambda: "a model",
        InferenceEngine=lambda model: SimpleNamespace(decode_step=SimpleNamespace(runner=runner)),
    )
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    torch.float16 = real_torch.float16
    monkeypatch.setattr(doctor, "torch", torch)
    monkeypatch.setattr(doctor, "rosecourse", rosecourse)
    if graphs:
        steps = "decode steps: 2 CUDA graphs, for up to 8 requests, in 34 MB"
        assert doctor.check_graphs() == f"{steps}, and a padded vocabulary, 77 MB for GPT-2 in float16"
    else:
        with pytest.raises(doctor.Problem, match="run without CUDA graphs, which is slower: free some of the GPU's"):
            doctor.check_graphs()
    torch.cuda.is_available = lambda: False
    assert doctor.check_graphs().endswith("(CUDA graphs need a GPU)")


@pytest.mark.parametrize("fused", [None, SimpleNamespace(most_rows=256)])
def test_a_gpu_is_told_whose_products_it_runs_and_their_memory(monkeypatch, fused):
    made = []
    best = SimpleNamespace(ops=lambda *given: made.append(given) or SimpleNamespace(fused=fused))
    rosecourse = SimpleNamespace(load_model=lambda: "a model", EngineConfig=lambda: "a config", BEST=best)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True), float16=real_torch.float16)
    monkeypatch.setattr(doctor, "torch", torch)
    monkeypatch.setattr(doctor, "rosecourse", rosecourse)
    said = doctor.check_products()
    assert made == [("a model", "a config")]
    if fused is None:
        assert said.startswith("matrix products: the library's (our own need Triton, and shared memory")
    else:
        assert said == (
            "matrix products: our own, for up to 256 rows; their weights, with norms folded in, take 248 MB more for "
            "GPT-2 in float16"
        )
    torch.cuda.is_available = lambda: False
    assert doctor.check_products() == "matrix products: the library's (our own, of lesson 070, are for a GPU)"


@pytest.fixture
def venv(monkeypatch, tmp_path):
    """What `make env` has made, in the current folder."""
    scripts = tmp_path / ".venv" / ("Scripts" if sys.platform == "win32" else "bin")
    scripts.mkdir(parents=True)
    (scripts / "rosecourse").touch()
    monkeypatch.setattr(doctor, "VENV", tmp_path / ".venv")
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".venv"


def test_an_environment_that_is_there_is_to_be_activated_and_not_installed_anew(venv, monkeypatch):
    assert doctor.check_environment() == f"environment: {sys.prefix}; {venv} is not active: type `. .venv/bin/activate`"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(doctor.Problem) as found:
        doctor.check_package("pandas")
    assert str(found.value).startswith(
        "pandas is not installed: activate the environment that has it, `. .venv/bin/act"
    )


def test_the_line_to_type_is_right_in_another_folder(venv, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert doctor.activation() == f". {venv}/bin/activate"


@pytest.mark.parametrize("case", ["active", "not whole"])
def test_an_environment_that_is_active_or_not_whole_is_not_to_be_activated(venv, monkeypatch, case):
    if case == "active":
        monkeypatch.setattr(sys, "prefix", str(venv))
    else:
        (venv / "bin" / "rosecourse").unlink()
    assert doctor.activation() is None
    assert doctor.check_environment() == f"environment: {sys.prefix}"
    assert doctor.remedy() == doctor.REINSTALL


@pytest.mark.parametrize("python", ["absent", "fails"])
def test_a_kernel_that_cannot_start_or_lacks_the_package(monkeypatch, tmp_path, python):
    (tmp_path / "fails").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "fails").chmod(0o755)
    spec = SimpleNamespace(argv=[str(tmp_path / python), "-m", "ipykernel_launcher"])
    specs = SimpleNamespace(KernelSpecManager=lambda: SimpleNamespace(get_kernel_spec=lambda name: spec))
    monkeypatch.setattr(doctor, "kernelspec", specs)
    with pytest.raises(doctor.Problem, match="cannot import rosecourse: start Jupyter with `make lab`"):
        doctor.check_kernel()


def test_no_kernel_at_all(monkeypatch):
    monkeypatch.setitem(sys.modules, "jupyter_client.kernelspec", None)
    with pytest.raises(doctor.Problem, match="no notebook kernel `python3`"):
        doctor.check_kernel()


def test_help(capsys):
    assert called.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: rosecourse doctor [OPTIONS]")


def test_a_check_that_breaks_is_told_by_the_name_of_what_it_looked_at(capsys, monkeypatch):
    def unreadable(name):
        raise PermissionError("pyproject.toml")

    monkeypatch.setattr(doctor, "least_version", unreadable)
    assert called.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"[FAIL] numpy: PermissionError: pyproject.toml: {doctor.REINSTALL}" in lines


def test_doctor_finds_all_well(capsys):
    assert called.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "All is well."
    assert all(line.startswith("[OK] ") for line in lines[:-1])
    assert len(lines) == len(doctor.NEEDED) + 9


def test_doctor_names_a_missing_package_and_the_remedy(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert called.main([]) == 1
    out = capsys.readouterr().out
    assert "[FAIL] pandas is not installed: run `make env`" in out
    assert out.endswith("1 to mend.\n")


def test_doctor_names_an_old_package(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.10.1+cpu")
    with pytest.raises(doctor.Problem, match=r"torch 2\.10\.1\+cpu is too old, 2\.11 is needed"):
        doctor.check_package("torch")
    monkeypatch.setattr(doctor, "version", lambda name: "2.11.0")
    assert doctor.check_package("torch") == "torch 2.11.0"


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
    with pytest.raises(doctor.Problem, match="git checkout data"):
        doctor.check_model()
