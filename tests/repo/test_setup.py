"""The set-up files agree: pyproject.toml, constraints.txt, environment.yml, Makefile and .ci/run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rosecourse.desk.notebooks import DESK, START
from tests.repo import wheel

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(r) for r in sum(EXTRAS.values(), PROJECT["dependencies"])]
PIN_LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in PIN_LINES)}


def pip_install_arguments(command: str) -> list[str]:
    """The arguments after `pip install` in a shell command."""
    return shlex.split(command.partition("pip install ")[2])


def make_would_run(target: str) -> list[str]:
    """The commands that `make target` would run in a fresh clone."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    env = {"PATH": os.environ["PATH"]}  # not the variables of the make that may be running this test
    command = ["make", "--dry-run", "--always-make", target]
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout.splitlines()


def make_install_arguments(target: str) -> list[str]:
    (command,) = [c for c in make_would_run(target) if "pip install" in c]
    return pip_install_arguments(command)


def test_requirements_have_pins_that_satisfy_them():
    pins = {requirement: PINS.get(canonicalize_name(requirement.name), "") for requirement in REQUIREMENTS}
    assert [one for one, pin in pins.items() if not (pin and one.specifier.contains(pin, prereleases=True))] == []


def test_environment_yml_installs_what_make_installs():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip_lines,) = [d["pip"] for d in dependencies if isinstance(d, dict)]
    assert shlex.split(" ".join(pip_lines)) == make_install_arguments("env")


@pytest.mark.parametrize(
    ("target", "extras"),
    [(target, "[lab,dev,serve]") for target in ("env", "lab", "test")]
    + [("mutants", "[mutants]"), ("browser-test", "[browser]"), ("book", "[book]")],
)
def test_make_installs_the_package_with_the_constraints(target, extras):
    *_, arguments = (pip_install_arguments(command) for command in make_would_run(target) if "pip install" in command)
    assert [word for word in arguments if word != "-q"] == ["-c", "constraints.txt", "-e", f".{extras}"]


def test_make_constraints_pins_what_any_extra_needs():
    extras = make_install_arguments("constraints")[-1].strip(".[]").split(",")
    assert sorted(extras) == sorted(EXTRAS)


def test_make_lab_opens_the_learners_copy_which_git_leaves_alone():
    *_, jupyter = make_would_run("lab")
    assert f"--LabApp.default_url=/lab/tree/{DESK}/{START}" in shlex.split(jupyter)
    assert f"/{DESK}/" in (ROOT / ".gitignore").read_text().splitlines()
    assert wheel.LEARNERS == DESK


def test_all_ways_in_have_a_python_that_is_supported():
    (check,) = [c for c in make_would_run("env") if "sys.version_info" in c]
    low, high = (f"{major}.{minor}" for major, minor in re.findall(r"\((\d+), (\d+)\)", check))
    assert PROJECT["requires-python"] == f">={low}"
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    (conda,) = re.findall(r"python=([\d.]+)", (ROOT / "environment.yml").read_text())
    for version in (container["image"].removeprefix("python:"), conda, high):
        assert SpecifierSet(f"{PROJECT['requires-python']},<={high}").contains(version)
    target = container["postCreateCommand"].removeprefix("make ")
    assert make_install_arguments(target) == make_install_arguments("env")


def test_hosted_cell_installs_the_package_once_it_has_an_address(monkeypatch):
    cell, ran = (ROOT / "docs" / "hosted_cell.py").read_text(), []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command[1:]))
    with pytest.raises(SystemExit, match="REPOSITORY is empty: write the address"):
        exec(cell, {})
    assert ran == []
    exec(cell.replace('REPOSITORY = ""', 'REPOSITORY = "https://host/course"'), {})
    assert ran[0] == ["-m", "pip", "install", "--quiet", "git+https://host/course"]
    assert ran[1] == ["-m", "rosecourse", "doctor"]


@pytest.mark.parametrize("lint", ["true", "false"])
@pytest.mark.parametrize("tests", ["true", "false"])
def test_make_test_runs_lint_and_tests_and_fails_if_either_does(lint, tests):
    fakes = [f"LINT={lint}", f"PYTEST={tests}", "BIN=/nowhere"]
    env = {"PATH": os.environ["PATH"]}
    made = subprocess.run(
        ["make", "--old-file=.venv/installed.stamp", "test", *fakes], cwd=ROOT, env=env, capture_output=True, text=True
    )
    said = {"true": "passed", "false": "failed"}
    assert made.stdout.splitlines()[-1] == f"lint: {said[lint]}, tests: {said[tests]}"
    assert (made.returncode == 0) == (lint == tests == "true")


@pytest.mark.parametrize(
    ("failing", "made"),
    [("neither", ["test", "wheel"]), ("test", ["test"]), ("wheel", ["test", "wheel"])],
)
def test_ci_makes_tests_and_wheel_and_passes_their_status_on(tmp_path, failing, made):
    script = ROOT / ".ci" / "run"
    # Read before it is run: a script that ran the tests by another way would run this test again, and so on for ever.
    lines = script.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["#!/usr/bin/env", "set", "cd", "make", "make"]

    fake_make = tmp_path / "make"
    fake_make.write_text(f'#!/bin/sh\necho "$PWD: make $*"\ntest "$1" != {failing} || exit 7\n')
    fake_make.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([script], cwd=tmp_path, env=env, capture_output=True, text=True)

    assert run.stdout.splitlines() == [f"{ROOT}: make {target}" for target in made]
    assert run.returncode == (0 if failing == "neither" else 7)
