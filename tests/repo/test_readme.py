"""The README and the pages beside it: commands parse, code runs, links lead somewhere, figures are recorded ones."""

import json
import re
import shlex
from pathlib import Path

import pytest

import rosecourse
from rosecourse import LESSONS
from rosecourse.desk.notebooks import END, START, notebooks_in
from rosecourse.measure.stats import NO_DIFFERENCE
from rosecourse.pages.shared import lessons_on
from rosecourse.records.runs import recorded_comparison
from tests.support.commands import ALL as COMMANDS
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900  # of the README
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
TABLES = script("readme_table")


def blocks(language):
    """The blocks of code in a language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", ALL)


def test_command_lines_parse_and_show_every_command():
    shown = set()
    for line in "\n".join(blocks("sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "python" in words:  # a script of maintainers
            assert (ROOT / words[words.index("python") + 1]).is_file()
        elif words:
            program, name, *flags = words
            assert program == "rosecourse"
            COMMANDS[name].flags(*flags)
            shown.add(name)
    assert shown == set(COMMANDS)


def test_public_names_are_listed_once_and_documented():
    (said,) = re.findall(r"gives these names.*?\n\n(.*?)\n\n", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL)
    assert sorted({*re.findall(r"`(\w+)`", said)}) == rosecourse.__all__
    for name in rosecourse.__all__:
        assert getattr(rosecourse, name).__doc__ or name in ("BASELINE", "BEST", "LESSONS"), name


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[2][:40])
def test_library_code_runs(code, model, monkeypatch, capsys):
    monkeypatch.setattr("rosecourse.load_model", lambda: model, raising=False)
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    if "mine" in names:
        assert type(names["mine"].decode_step.kv_append) is names["MyKVAppend"]
    else:
        assert len(capsys.readouterr().out) > 100


def test_links_lead_to_files_and_headings():
    for path in PAGES:
        found = re.findall(r"\]\((?!https?://)([^)#]+)(?:#([^)]+))?\)", path.read_text())
        assert [link for link, _ in found if not (path.parent / link).exists()] == []
        for link, anchor in found:
            assert not anchor or anchor in anchors_of(path.parent / link)
    assert {str(path.relative_to(ROOT)) for path in PAGES[1:]} <= set(re.findall(r"\]\(([^)#]+)", README))
    examples = set(re.findall(r"\]\(\.\./(examples/\w+\.py)\)", ALL))
    assert examples == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def anchors_of(path):
    """Of the headings of a page, and of a notebook, whose anchors keep their capitals."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    else:
        text = path.read_text().lower()
    return [heading.replace(" ", "-") for heading in re.findall(r"(?m)^#+ (.*)$", text)]


def test_paths_in_code_are_there():
    """Those that begin with a folder of the repository; a star stands for what it matches."""
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
    asked = [one for one in re.findall(rf"`((?:{folders})/[^`\s]*)`", ALL) if "<" not in one]
    assert [one for one in asked if not list(ROOT.glob(one)) and not one.startswith("my/")] == []


def test_targets_of_make_are_there():
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))
    asked = set(re.findall(r"(?m)(?:`|^    (?:\w+=\S+ )?)make ([a-z-]+)", ALL))
    assert {"lab", "book", "reset", "browser-test"} <= asked <= targets


# -- the README's table and figures -----------------------------------------------------------------------------------


def test_readme_is_short_and_has_a_row_for_each_notebook():
    assert len(README.split()) <= MOST_WORDS
    start, *pages = notebooks_in(ROOT / "notebooks")
    at = [page.name for page in pages].index(END)
    lessons, others = pages[:at], pages[at:]
    assert start.name == START
    links = re.findall(r"(?m)^\| \[(\d{3}) [^]]+\]\(notebooks/(.*?)\)", README)
    assert links == [(number, path.name) for path in lessons for number in lessons_on(path)]
    assert all(f"](notebooks/{path.name})" in README for path in others)


def test_lessons_without_a_difference_are_those_that_are_named():
    ratios = {rung.number: recorded_comparison(rung.number).ratio(*rung.headline) for rung in LESSONS if rung.changes}
    (said,) = re.findall(r"measured twice: ([\d, and]+)", " ".join(README.split()))
    assert re.findall(r"\d{3}", said) == [number for number, one in ratios.items() if one.verdict == NO_DIFFERENCE]


@pytest.mark.parametrize("path", TABLES.tables(), ids=lambda path: path.name)
def test_page_shows_the_tables_that_ladder_and_records_make(path):
    text = path.read_text()
    for table in TABLES.tables()[path]:
        assert table in text, "run `python docs/readme_table.py`"
