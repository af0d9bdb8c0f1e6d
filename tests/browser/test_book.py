"""The book in a real browser, from the file system: every page and every link, on a phone and in both themes."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from playwright.sync_api import Browser, Page, expect

from rosecourse.desk.notebooks import all_notebooks_in, notebooks_in

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "build" / "book"
FOLDER = ROOT / "notebooks"
LESSONS = [path.stem for path in notebooks_in(FOLDER)]
PAGES = sorted(f"notebooks/{path.relative_to(FOLDER).with_suffix('.html')}" for path in all_notebooks_in(FOLDER))
PHONE = {"width": 390, "height": 844}

# What a page says of itself: missing, pictures that did not load; untold, drawings without an alternative text; open,
# what is unfolded without a click. The column of the text is a box that could scroll, and must not either.
LOOK = """() => ({
    links: [...document.querySelectorAll("a[href]")].map(a => a.href),
    ids: [...document.querySelectorAll("[id]")].map(e => e.id),
    too_wide: [document.documentElement, document.querySelector(".content")]
        .filter(e => e.scrollWidth > e.clientWidth).map(e => `${e.className || e.tagName}: ${e.scrollWidth}`),
    missing: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
    untold: [...document.querySelectorAll("img[src$='.svg']")]
        .filter(i => !i.alt || i.alt.includes("/")).map(i => i.src),
    open: [...document.querySelectorAll("article details[open]")].map(d => d.innerText.slice(0, 60)),
    text: document.querySelector("article").innerText.length,
})"""


def look(page: Page, path: Path) -> dict[str, Any]:
    """What was seen of a page, and under `trouble` what the console said and what was fetched from elsewhere."""
    trouble: list[str] = []
    listeners = {
        "console": lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None,
        "pageerror": lambda error: trouble.append(str(error)),
        "requestfailed": lambda request: trouble.append(f"not loaded: {request.url}"),
        "request": lambda request: None if request.url.startswith(("file:", "data:")) else trouble.append(request.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(path.as_uri())
    seen = page.evaluate(LOOK) | {"trouble": trouble}
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return seen


@pytest.fixture(scope="module")
def book() -> Path:
    """The folder of the book, which is made if it is not there."""
    if not (BOOK / "index.html").exists():
        subprocess.run(["make", "book"], cwd=ROOT, check=True)
    return BOOK


@pytest.fixture(scope="module")
def seen(browser: Browser, book: Path) -> dict[str, dict[str, Any]]:
    """Each page of the book as it is on a phone, by its path in the book."""
    page = browser.new_page(viewport=PHONE)
    looks = {path.relative_to(book).as_posix(): look(page, path) for path in sorted(book.rglob("*.html"))}
    page.close()
    return looks


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce")
    yield page
    page.close()


def test_every_notebook_and_every_room_is_a_page(seen):
    assert sorted(name for name in seen if name.startswith("notebooks/")) == PAGES
    more = {"index.html", "search.html", "look_up/library.html", "api/rosecourse.kv.html", "api/rosecourse.engine.html"}
    assert more <= seen.keys()
    assert not [name for name, look in seen.items() if look["text"] < 200 and name != "search.html"]


@pytest.mark.parametrize("what", ["too_wide", "missing", "untold", "open", "trouble"])
def test_every_page_is_sound_on_a_phone(seen, what):
    assert {name: look[what] for name, look in seen.items() if look[what]} == {}


def test_every_link_inside_the_book_leads_somewhere(seen, book):
    ids = {(book / name).as_uri(): set(look["ids"]) for name, look in seen.items()}
    astray = []
    for name, look in seen.items():
        for link in look["links"]:
            target, anchor = urldefrag(link)
            if target in ids:
                found = not anchor or unquote(anchor) in ids[target]
            else:
                found = not target.startswith("file:") or Path(unquote(target.removeprefix("file://"))).is_file()
            astray += [] if found else [f"{name}: {link}"]
    assert astray == []


def test_lessons_are_in_order_in_the_list_and_page_to_page(page, book):
    page.goto((book / "index.html").as_uri())
    listed = page.locator(".sidebar-tree a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
    assert sorted(link for link in listed if link.startswith("notebooks/")) == PAGES
    for stem in LESSONS:
        page.locator("a.next-page").click()
        expect(page).to_have_url((book / "notebooks" / f"{stem}.html").as_uri())
    page.locator("a.prev-page").click()
    expect(page).to_have_url((book / "notebooks" / f"{LESSONS[-2]}.html").as_uri())


def test_the_search_finds_a_word_without_a_server(page, book):
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.goto((book / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("rollover")
    page.keyboard.press("Enter")
    hit = page.locator("#search-results a[href^='notebooks/059_rollover']").first
    expect(hit).to_be_visible()
    hit.click()
    expect(page).to_have_url(re.compile(r"^file:.*/notebooks/059_rollover\.html"))
    assert trouble == []


def test_a_solution_is_folded_until_it_is_clicked(page, book):
    page.goto((book / "notebooks" / "038_batched_append.html").as_uri())
    answers = page.locator("article details")
    assert answers.count() > 3
    for answer in answers.all():
        inside = answer.locator(":scope > :not(summary, style)").first
        if answer.locator("xpath=ancestor::details").count():
            continue  # folded with the one around it
        expect(inside).to_be_hidden()
        answer.locator("summary").first.click()
        expect(inside).to_be_visible()
