"""The README and the pages of docs/: commands parse, code runs, links lead somewhere, and figures are recorded ones."""

import json
import re
import runpy
import shlex
import venv
from pathlib import Path

import pytest
from PIL import Image

from rosecourse import LESSONS
from rosecourse.measure.stats import NO_DIFFERENCE
from rosecourse.records.noted import noted
from rosecourse.records.runs import recorded_comparison
from tests.support.commands import ALL as COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPT = ["PYTHONPATH=.", "python"]  # how a script of maintainers is called
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words)[:60])
def test_each_command_line_parses(words):
    if words[:2] == SCRIPT:
        assert (ROOT / words[2]).is_file()
        return
    program, name, *flags = words
    assert program == "rosecourse"
    COMMANDS[name].flags(*flags)


def test_each_command_is_shown():
    assert {words[1] for words in command_lines() if words[:2] != SCRIPT} == set(COMMANDS)


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


def test_the_library_code_is_there():
    assert len(blocks("python", README)) == 1
    assert "MyKVAppend" in "".join(blocks("python"))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_each_local_link_leads_to_a_file_and_a_heading(path):
    found = re.findall(r"\]\((?!https?://)([^)#]+)(?:#([^)]+))?\)", path.read_text())
    assert len(found) > (20 if path.name == "README.md" else -1)
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
    assert {f"docs/{path.name}" for path in PAGES[1:]} <= set(re.findall(r"\]\(([^)#]+)", README))


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_each_path_in_code_is_there(path):
    """Those that begin with a folder of the repository; a star stands for what it matches."""
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
    asked = [one for one in re.findall(rf"`((?:{folders})/[^`\s]*)`", path.read_text()) if "<" not in one]
    assert [one for one in asked if not list(ROOT.glob(one)) and not one.startswith("my/")] == []


def test_each_example_is_named():
    linked = set(re.findall(r"\]\((examples/\w+\.py)\)", README))
    assert linked == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_each_target_of_make_is_there():
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))
    asked = set(re.findall(r"(?m)(?:`|^    (?:\w+=\S+ )?)make ([a-z-]+)", ALL))
    assert {"lab", "book", "reset", "browser-test"} <= asked
    assert asked <= targets


def test_the_environment_is_activated_by_files_that_every_environment_has():
    there = {path.name for path in (Path(venv.__file__).parent / "scripts").rglob("*")}
    asked = re.findall(r"`[^`|]*\.venv[/\\](?:bin|Scripts)[/\\]([A-Za-z0-9.]+)`", ALL)
    assert {"activate", "activate.fish", "Activate.ps1", "activate.bat"} <= set(asked)
    assert set(asked) - {"rosecourse", "activate.bat"} <= there  # the latter is in a Python for Windows only


# -- figures ------------------------------------------------------------------------------------------------------


def minutes_of(pattern):
    """The minutes that the notebooks state for something, in all."""
    heads = []
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        heads += ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"][:2]]
    return sum(int(n) for n in re.findall(pattern, " ".join(" ".join(heads).split())))


def test_the_hours_are_those_that_the_notebooks_state():
    hours = re.search(
        r"about (\d+) hours: (\d+) to read the lessons, (\d+) for the exercises\sand (\d+) to hunt", README
    )
    stated = [int(n) for n in hours.groups()]
    patterns = [r"about (\d+) minutes to read", r"(\d+) minutes for the exercise", r"exercise and (\d+) for the bug"]
    minutes = [minutes_of(pattern) for pattern in patterns]
    assert [round(one / 60) for one in (sum(minutes), *minutes)] == stated


def test_the_lessons_without_a_difference_are_those_that_are_named():
    ratios = {rung.number: recorded_comparison(rung.number).ratio(*rung.headline) for rung in LESSONS if rung.changes}
    (said,) = re.findall(r"That is so for ([\d, and]+)", " ".join(README.split()))
    assert re.findall(r"\d{3}", said) == [number for number, one in ratios.items() if one.verdict == NO_DIFFERENCE]


def test_the_lessons_that_need_triton_are_those_that_are_named():
    needing = re.findall(r"notebooks/(\d{3})_", (ROOT / "conftest.py").read_text())
    (said,) = re.findall(r"leave out the notebooks of ([\d, and]+)", " ".join(README.split()))
    assert re.findall(r"\d{3}", said) == needing


def test_the_other_engines_were_measured_when_the_readme_says():
    (date,) = set(noted("others").date)
    assert f"measured on {date}" in " ".join(README.split())


def test_the_tokens_are_the_same_where_the_readme_says_so():
    assert all(recorded_comparison("071", name).conditions.same_tokens for name in ("A", "B", "C-one"))


@pytest.fixture(scope="module")
def drawing():
    """What draws the README's picture."""
    return runpy.run_path(str(ROOT / "docs" / "readme_picture.py"))


def test_the_picture_shows_what_is_recorded(drawing):
    with Image.open(drawing["PICTURE"]) as picture:
        assert picture.text["Recorded"] == drawing["facts"](), "run `python docs/readme_picture.py`"
        assert picture.width >= 1600  # sharp where a pixel of the page is two of the screen
        assert picture.convert("RGBA").getextrema()[3] == (255, 255)  # opaque, for dark pages


def test_the_pictures_caption_says_what_is_recorded(drawing):
    assert drawing["caption"]() in README.splitlines(), "run `python docs/readme_picture.py`"


def test_the_picture_is_shown_with_a_text_in_its_place():
    ((text, path),) = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", README)
    assert ROOT / path == ROOT / "docs" / "whole_ladder.png"
    assert len(text) > 80
