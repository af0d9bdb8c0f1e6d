"""What `make lab` starts, for the tests: in a copy of the tree, with settings, a port and a token of its own."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = (".git", ".*_cache", ".venv*", ".hypothesis", ".ipynb_checkpoints", "__pycache__", "*.egg-info")
NOT_SOURCE += ("build", "dist", "mutants", "my")
SECONDS_TO_START = 120  # with the copies of the notebooks
# What Jupyter Lab asks on its first start would lie over the pictures.
QUIET = {"apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}


@dataclass(frozen=True)
class Lab:
    """A running server. tree: the copy that it serves; log: what it has written."""

    url: str
    token: str
    tree: Path
    log: Path

    def end_kernels(self) -> None:
        """So that a notebook that is opened next gets a kernel of its own, in which nothing has been run."""
        for kernel in self._api("GET", "kernels"):
            self._api("DELETE", f"kernels/{kernel['id']}")

    def _api(self, method: str, what: str) -> Any:
        headers = {"Authorization": f"token {self.token}"}
        with urlopen(Request(f"{self.url}api/{what}", method=method, headers=headers)) as answer:
            return json.loads(answer.read() or "null")


def copy_of_the_tree(folder: Path) -> Path:
    """What a learner has after `make env`, with this tree's changes: lessons that run there dirty nothing here."""
    tree = shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*NOT_SOURCE))
    (tree / ".venv").symlink_to(sys.prefix)
    return tree


def environment(tree: Path, folder: Path) -> dict[str, str]:
    """The environment with this copy's package first, and with folders for what Jupyter and IPython keep.

    The make that may be running these tests keeps its flags to itself.
    """
    mine = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    kept = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    lab = {f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    return mine | kept | lab | {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": str(tree)}


def write_settings(folder: Path) -> None:
    for name, settings in QUIET.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def started(server: subprocess.Popen, runtime: Path, log: Path) -> dict[str, Any]:
    """What a server leaves in its runtime folder when it has started: its process and its port, for example."""
    end = time.monotonic() + SECONDS_TO_START
    while not (found := list(runtime.glob("jpserver-*.json"))):
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Jupyter Lab has not started:\n{log.read_text()}")
        time.sleep(0.1)
    return json.loads(found[0].read_text())


@contextmanager
def serving(folder: Path) -> Iterator[Lab]:
    """Serves a copy of the tree from an empty folder for as long as the block runs."""
    tree, log, token = copy_of_the_tree(folder), folder / "jupyter.log", secrets.token_hex(16)
    write_settings(folder)
    flags = ["--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={free_port()}"]
    flags += [f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True"]
    make = ["make", "--old-file=.venv/installed.stamp", "lab", f"ARGS={' '.join(flags)}"]  # installs nothing
    with log.open("w") as written:
        server = subprocess.Popen(
            make,
            cwd=tree,
            env=environment(tree, folder),
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        about = started(server, folder / "runtime", log)
        yield Lab(f"http://127.0.0.1:{about['port']}/", token, tree, log)
        os.kill(about["pid"], signal.SIGTERM)  # it ends its kernels, and make ends after it
        server.wait(timeout=30)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # what is left
        server.wait()
