"""The README and the pages beside it: commands parse, code runs, links lead somewhere, figures are recorded ones."""

import json
import re
import shlex
from pathlib import Path

import pytest

import rosecourse
from rosecourse import LESSONS
from rosecourse.measure.stats import NO_DIFFERENCE
from rosecourse.records.runs import recorded_comparison
from tests.support.commands import ALL as COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900  # of the README
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def named(path):
    return path.name


def blocks(language, text=ALL):
    """The blocks of code in a language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


def command_lines():
    """Every command in the shell blocks, without comments, as its words."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def test_the_readme_is_short():
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words)[:60])
def test_each_command_line_parses(words):
    if "python" in words:  # a script of maintainers
        assert (ROOT / words[words.index("python") + 1]).is_file()
        return
    program, name, *flags = words
    assert program == "rosecourse"
    COMMANDS[name].flags(*flags)


def test_each_command_is_shown():
    assert {words[1] for words in command_lines() if words[0] == "rosecourse"} == set(COMMANDS)


def test_the_public_names_are_listed_once():
    (said,) = re.findall(r"gives these names.*?\n\n(.*?)\n\n", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL)
    assert sorted({*re.findall(r"`(\w+)`", said)}) == rosecourse.__all__


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[2][:40])
def test_the_library_code_runs(code, model, monkeypatch, capsys):
    monkeypatch.setattr("rosecourse.load_model", lambda: model, raising=False)
    assert max(map(len, code.splitlines())) <= 120
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    if "mine" in names:
        assert type(names["mine"].decode_step.kv_append) is names["MyKVAppend"]
    else:
        assert len(capsys.readouterr().out) > 100


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_each_local_link_leads_to_a_file_and_a_heading(path):
    found = re.findall(r"\]\((?!https?://)([^)#]+)(?:#([^)]+))?\)", path.read_text())
    assert [link for link, _ in found if not (path.parent / link).exists()] == []
    for link, anchor in found:
        assert not anchor or anchor in anchors_of(path.parent / link)


def anchors_of(path):
    """Of the headings of a page, and of a notebook, whose anchors keep their capitals."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    else:
        text = path.read_text().lower()
    return [heading.replace(" ", "-") for heading in re.findall(r"(?m)^#+ (.*)$", text)]


def test_each_page_is_linked_from_the_readme():
    assert {str(path.relative_to(ROOT)) for path in PAGES[1:]} <= set(re.findall(r"\]\(([^)#]+)", README))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_each_path_in_code_is_there(path):
    """Those that begin with a folder of the repository; a star stands for what it matches."""
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
    asked = [one for one in re.findall(rf"`((?:{folders})/[^`\s]*)`", path.read_text()) if "<" not in one]
    assert [one for one in asked if not list(ROOT.glob(one)) and not one.startswith("my/")] == []


def test_each_example_is_named():
    linked = set(re.findall(r"\]\(\.\./(examples/\w+\.py)\)", ALL))
    assert linked == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_each_target_of_make_is_there():
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))
    asked = set(re.findall(r"(?m)(?:`|^    (?:\w+=\S+ )?)make ([a-z-]+)", ALL))
    assert {"lab", "book", "reset", "browser-test"} <= asked
    assert asked <= targets


# -- figures ------------------------------------------------------------------------------------------------------


def test_the_lessons_without_a_difference_are_those_that_are_named():
    ratios = {rung.number: recorded_comparison(rung.number).ratio(*rung.headline) for rung in LESSONS if rung.changes}
    (said,) = re.findall(r"measured twice: ([\d, and]+)", " ".join(README.split()))
    assert re.findall(r"\d{3}", said) == [number for number, one in ratios.items() if one.verdict == NO_DIFFERENCE]
