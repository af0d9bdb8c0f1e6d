"""A Chromium for the tests of what a reader sees, and a Jupyter Lab. `make browser-test` runs these tests alone."""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.server import Lab, serving

NAMES = ("chromium", "chromium-browser", "google-chrome")  # of the command, on one system or another


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
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A Jupyter Lab that serves a copy of the tree. It needs no browser, but without one it starts in vain."""
    with serving(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def lab(server: Lab) -> Iterator[Lab]:
    """The Jupyter Lab that all tests share, without kernels."""
    yield server
    server.end_kernels()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page of a width in pixels; an error in its console fails the test at its end."""
    pages, errors = [], []

    def opened(width: int = 1280) -> Page:
        page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        pages.append(page)
        return page

    try:
        yield opened
    finally:
        for page in pages:
            page.context.close()
    assert not errors
