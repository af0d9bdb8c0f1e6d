"""`make wheel`: what a user without the source tree gets.

A source archive is made of the repository, a wheel of the archive, and the wheel is installed into an empty
environment. It must hold every module, the model and the recordings, and nothing else; its commands run in a folder
from which nothing of the repository can be seen, and write what they write here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = (".git", ".*_cache", ".venv*", ".hypothesis", "__pycache__", "build", "dist", "mutants", "*.egg-info")
LEARNERS = "my"
SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
WHERE = "import rosecourse.config as c; print(c.PACKAGE); print(c.DATA); print(*(p.name for p in c.DATA.iterdir()))"
GENERATE = ["generate", "--prompt", "My dear", "--max-new-tokens", "12"]


def call(*command: object, folder: Path) -> str:
    """What a command writes; it must succeed. Nothing of the repository comes in by the environment."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=outside, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def make_wheel(python: Path, folder: Path) -> Path:
    """A wheel that is built from a source archive, which is built from a clean copy of the repository."""
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_SOURCE, LEARNERS))
    call(sys.executable, "-c", SDIST, folder, folder=source)
    (archive,) = folder.glob("*.tar.gz")
    call(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, archive, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_files(wheel: Path) -> None:
    """The wheel has the modules, the mark that they are typed, the data and the license, and nothing else."""
    names = set(ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rosecourse").rglob("*.py")}
    files = (path.relative_to(ROOT) for path in (ROOT / "data").rglob("[!.]*") if path.is_file())
    data = {f"rosecourse/{path.as_posix()}" for path in files}
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    wanted = modules | data | {"rosecourse/py.typed"}
    assert names - about == wanted, (names - about) ^ wanted
    assert any(name.endswith("/licenses/LICENSE") for name in about), about


def check_commands(commands: Path, elsewhere: Path) -> None:
    """The installed commands run in another folder, with the model and the data of the wheel."""
    package, data, files = call(commands / "python", "-c", WHERE, folder=elsewhere).splitlines()
    assert Path(data) == Path(package) / "data"
    assert Path(package).is_relative_to(commands.parent.resolve())
    assert {"published.csv", "results", "tiny-gpt2"} <= set(files.split())

    here = call(sys.executable, "-m", "rosecourse", *GENERATE, folder=ROOT)
    assert len(here) > len("My dear\n")
    assert call(commands / "rosecourse", *GENERATE, folder=elsewhere) == here

    lines = call(commands / "rosecourse", "doctor", folder=elsewhere).splitlines()
    assert lines[-1] == "All is well.", lines


def main() -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rosecourse-wheel-") as name:
        folder = Path(name).resolve()
        commands, elsewhere = folder / "empty" / "bin", folder / "elsewhere"
        elsewhere.mkdir()
        call(sys.executable, "-m", "venv", folder / "empty", folder=folder)
        wheel = make_wheel(commands / "python", folder)
        check_files(wheel)
        size = wheel.stat().st_size / 1e6
        print(f"{wheel.name}: {size:.1f} MB; installing it and what it needs", flush=True)
        pip = (commands / "python", "-m", "pip", "install", "--no-compile")  # compiled when it is imported, if it is
        call(*pip, "-c", ROOT / "constraints.txt", wheel, folder=elsewhere)
        check_commands(commands, elsewhere)
    print(f"wheel: passed, {time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
