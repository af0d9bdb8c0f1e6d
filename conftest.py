"""Time limits, and settings for the notebooks (`pytest --nbval`). Without these plugins the other tests still run."""

import json
import signal
import sys
import time
from importlib import import_module
from importlib.util import find_spec

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # inherited, as under nohup: tests and notebooks send it
    signal.signal(signal.SIGINT, signal.default_int_handler)

LIVE = ("036", "038", "059", "060", "061", "064", "066", "067")  # their pages measure where they are read
LIMIT = 180  # seconds, for each test and for each cell of a notebook
QUICK = 1  # seconds of a cell that is run twice

collect_ignore = [] if find_spec("playwright") else ["tests/browser"]  # `make browser-test` installs it


def pytest_configure(config):
    options = config.option
    if hasattr(options, "nbval_current_env"):
        options.nbval_current_env = True  # the Python that runs pytest, whatever kernels the machine has
        options.nbval_cell_timeout = LIMIT
        if sys.platform == "linux" and find_spec("tests"):
            provisioner = import_module("jupyter_client.provisioning.local_provisioner")
            provisioner.launch_kernel = import_module("tests.support.forked_kernels").launch_kernel
    if hasattr(options, "timeout") and options.timeout is None:
        options.timeout = LIMIT


def pytest_itemcollected(item):
    """For a cell nbval keeps the limit: it stops the kernel and says which cell it was."""
    if item.path.suffix == ".ipynb" and item.config.pluginmanager.hasplugin("timeout"):
        item.add_marker(pytest.mark.timeout(0))


def pytest_runtest_setup(item):
    """The first cell of a page fails for it: a page of `LIVE` without its live figure."""
    page = item.path
    is_live = page.suffix == ".ipynb" and page.parent.name == "notebooks" and page.name[:3] in LIVE
    if is_live and item.name == "Cell 0" and not has_live_figure(page):
        pytest.fail(f"{page.name} lacks its live figure: a cell with `your_run(` that is executed and shows a PNG")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A reader may run a cell again, in place: a quick one with the outputs that are stored does not raise."""
    begin = time.monotonic()
    yield
    if item.path.suffix == ".ipynb" and item.options["check"] and time.monotonic() - begin < QUICK:
        item.options["check"] = False
        item.runtest()


def has_live_figure(page):
    cells = [cell for cell in json.loads(page.read_text())["cells"] if "your_run(" in "".join(cell["source"])]
    return any("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
