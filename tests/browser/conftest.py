"""A Chromium for the tests of what a reader sees. `make browser-test` runs them; `make test` leaves them out."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")  # of the command, on one system or another
PICTURES = Path(__file__).resolve().parents[2] / "build" / "browser"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one that is installed on this machine."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            f"no Chromium on PATH ({', '.join(NAMES)}): install one, on Debian with `apt-get install chromium`",
            pytrace=False,
        )
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox refuses to start for root
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if root else [])
        try:
            yield chromium
        finally:
            chromium.close()


@pytest.fixture(scope="session")
def pictures() -> Path:
    """The folder for screenshots, which git ignores: to be looked at, compared with nothing."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
