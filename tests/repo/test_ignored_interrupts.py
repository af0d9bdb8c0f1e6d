"""Where SIGINT is inherited as ignored, as by a job in the background, tests and their processes are interrupted."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import signal, subprocess, sys
import pytest

def test_here():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

def test_in_a_process():
    code = "import signal; signal.raise_signal(signal.SIGINT)"
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == -signal.SIGINT
"""


def test_a_worker_and_its_processes_are_interrupted(tmp_path):
    (tmp_path / "test_interrupted.py").write_text(INTERRUPTED)
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--numprocesses=1", str(tmp_path)]
    run = subprocess.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest], cwd=tmp_path, capture_output=True)
    assert run.returncode == 0, run.stdout.decode()
