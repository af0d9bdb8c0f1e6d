"""HTML of notebooks: escaped, whole without styles, and readable in both themes."""

import re

import pytest
from PIL.ImageColor import getrgb

from rosecourse import lesson
from rosecourse.lab.checking.search import Outcome
from rosecourse.lab.checks.verdict import Verdict
from rosecourse.pages.html import bullets, headline, prose, values
from rosecourse.pages.source import BEHIND, Listing, diff_html, listing
from rosecourse.pictures.colours import (
    BY_DEVICE,
    EMPTY,
    HEADS,
    OTHER_COLOUR,
    OWNER_COLOURS,
    SHARED,
    text_on,
)
from rosecourse.pictures.colours import COLOURS as COLOURS_OF_PARTS
from tests.support.stripped import stripped

NASTY = '<img src=x onerror="alert(1)"> & `a<b` **bold**'
DIFF = "--- before\n+++ after\n@@ -1,3 +1,3 @@\n def f(x):\n-    return x < 1\n+    return x > 1\n \n"


def luminance(colour):
    """The relative luminance of red, green and blue, 0 to 255 each, as WCAG defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(page, rgba):
    *colour, alpha = map(float, re.findall(r"[\d.]+", rgba))
    return [alpha * part + (1 - alpha) * behind for part, behind in zip(colour, page, strict=True)]


@pytest.mark.parametrize(
    "page",
    [
        prose(NASTY),
        headline(NASTY),
        bullets([NASTY]),
        values([(NASTY, NASTY)]),
        diff_html(NASTY),
        Listing(NASTY)._repr_html_(),
        Verdict("Mine", "038", Outcome(NASTY, (NASTY,), NASTY, NASTY, (NASTY,)))._repr_html_(),
    ],
)
def test_everything_is_escaped(page):
    assert "<img" not in page
    assert "&lt;" in page


def test_diff_has_coloured_lines_and_is_its_own_text():
    page = diff_html(DIFF)
    assert page.count('<span class="gd">') == page.count('<span class="gi">') == 2
    assert stripped(page).pre.get_text() == DIFF


@pytest.mark.parametrize(("page", "text"), [((255, 255, 255), (33, 33, 33)), ((17, 17, 17), (255, 255, 255))])
def test_coloured_lines_can_be_read_in_both_themes(page, text):
    for rgba in BEHIND.values():
        assert contrast(over(page, rgba), text) > 7


@pytest.mark.parametrize(
    "fill", sorted({*OWNER_COLOURS, *HEADS, OTHER_COLOUR, SHARED, EMPTY, BY_DEVICE, *COLOURS_OF_PARTS.values()})
)
def test_words_on_a_colour_of_the_pictures_can_be_read(fill):
    assert contrast(getrgb(text_on(fill)), getrgb(fill)) >= 4.5


def test_listing_keeps_its_lines_whatever_colours_them():
    part = lesson("036").after.block_tables
    shown = listing(part.__call__, part)
    assert str(shown).startswith("def __call__(self")  # no indentation of the class that it stands in
    assert stripped(shown._repr_html_()).pre.get_text() == str(shown)
    assert str(listing("def f(")) == "def f("


def test_verdict_tells_its_story_as_it_is_printed():
    wrong = Outcome("heads=2", ("start A with 1 token", "step [A]"), "K must be A1", "line 3, in f: x", ("block 0",))
    verdict = Verdict("Mine", "038", wrong)
    page = stripped(verdict._repr_html_())
    assert page.p.b.get_text() == "✗ Mine, lesson 038: not right yet."
    assert page.pre.get_text().split() == str(verdict).split("yet.")[1].split()
