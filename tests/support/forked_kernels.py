"""Kernels that start in a second: forks of a process that has imported the large libraries, not the course.

`python -m tests.support.forked_kernels` is that process: it reads a line of JSON for a kernel, and writes its number.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache, partialmethod
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Not pandas: as it is imported it looks whether it is in a notebook.
LIBRARIES = ("torch", "transformers", "transformers.models.gpt2", "matplotlib.axes", "ipykernel.kernelapp")


class Kernel:
    """What `subprocess.Popen` is to those who started a process; this one is another's child."""

    stdin = stdout = stderr = returncode = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.returncode = 0
        return self.returncode

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    terminate = partialmethod(send_signal, signal.SIGTERM)
    kill = partialmethod(send_signal, signal.SIGKILL)


@cache
def forking():
    """The process that forks; it ends when its input does, with this one."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT, **pipes)


def launch_kernel(cmd, env=None, cwd=None, **_):
    """In the place of Jupyter's own."""
    print(json.dumps([cmd[cmd.index("-f") + 1], dict(env or os.environ), cwd]), file=forking().stdin, flush=True)
    return Kernel(int(forking().stdout.readline()))


def serve():
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as every kernel has it
    for name in LIBRARIES:
        import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the kernels
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)  # Jupyter interrupts the whole group
            print(pid, flush=True)
        else:
            run(*json.loads(line))


def run(connection_file, env, cwd):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.environ.clear()
    os.environ.update(env)
    if cwd:
        os.chdir(cwd)
    sys.path[0] = ""
    import_module("ipykernel.kernelapp").launch_new_instance(["-f", connection_file])
    os._exit(0)


if __name__ == "__main__":
    serve()
