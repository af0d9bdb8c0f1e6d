"""The README: its commands parse, its code runs, its links lead somewhere, and its figures are those of the records."""

import json
import re
import runpy
import shlex
import venv
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from rosecourse.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """The README's blocks of code in a language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


def command_lines():
    """Every command in the README's shell blocks, without comments, as its words."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


@pytest.mark.parametrize("words", command_lines(), ids=lambda words: " ".join(words)[:60])
def test_each_command_line_parses(words, monkeypatch):
    program, name, *flags = words
    assert program == "rosecourse"
    assert name in COMMANDS
    module = import_module(f"rosecourse.commands.{name}")
    parsed = []
    monkeypatch.setattr(module, "run_command", lambda parser, work, argv: parsed.append(parser.parse_args(argv)))
    module.main(flags)
    assert len(parsed) == 1


def test_each_command_is_shown():
    assert {name for _, name, *_ in command_lines()} == set(COMMANDS)


def test_the_library_code_runs(model, monkeypatch, capsys):
    monkeypatch.setattr("rosecourse.load_model", lambda: model, raising=False)
    (code,) = blocks("python")
    assert max(map(len, code.splitlines())) <= 120
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert type(names["mine"].decode_step.kv_append) is names["MyKVAppend"]
    assert len(capsys.readouterr().out) > 200


def test_each_local_link_leads_to_a_file():
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_each_path_in_code_is_there():
    """Those that begin with a folder of the repository; a star stands for what it matches."""
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._")
    paths = [path for path in re.findall(rf"`((?:{folders})/[^`\s]*)`", README) if "<" not in path]
    assert len(paths) > 3
    assert [path for path in paths if not list(ROOT.glob(path))] == []


def test_each_example_is_named():
    named = set(re.findall(r"\]\((examples/\w+\.py)\)", README))
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_each_target_of_make_is_there():
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text()))
    asked = set(re.findall(r"(?m)(?:`|^    )make ([a-z-]+)", README))
    assert "lab" in asked
    assert asked <= targets


def test_the_environment_is_activated_by_files_that_every_environment_has():
    there = {path.name for path in (Path(venv.__file__).parent / "scripts").rglob("*")}
    asked = re.findall(r"`[^`|]*\.venv[/\\](?:bin|Scripts)[/\\]([A-Za-z0-9.]+)`", README)
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
