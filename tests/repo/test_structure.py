"""Rules of the code that tests can hold: what is public, what is imported when, who reads the environment."""

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rosecourse
from rosecourse import BASELINE, BEST, LESSONS, DecodeParts, EngineConfig, InferenceEngine, LessonError, lesson

PACKAGE = Path(rosecourse.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
EDGE = {"commands/flags.py"}  # the only place that reads environment variables


def test_every_public_name_is_there_and_documented():
    for name in rosecourse.__all__:
        thing = getattr(rosecourse, name)
        assert thing.__doc__ or name in ("BASELINE", "BEST", "LESSONS"), name


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = "import sys, rosecourse; print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_globals_no_environment_and_every_module_says_what_it_is(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module docstring"
    assert not any(isinstance(node, ast.Global) for node in ast.walk(tree))
    if path.relative_to(PACKAGE).as_posix() not in EDGE:
        assert not re.search(r"\bos\.(environ|getenv)\b", path.read_text())


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_are_short_enough_to_read_at_once(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 45, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_functions_have_type_hints(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if any(ast.unparse(d).endswith("jit") for d in node.decorator_list):
                continue
            arguments = [a for a in node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")]
            assert node.returns is not None, node.name
            assert all(a.annotation is not None for a in arguments), node.name


def test_the_ladder_ends_with_the_best_parts():
    assert LESSONS[-1].after == BEST
    assert LESSONS[0].before == LESSONS[0].after == BASELINE
    assert lesson("best") is LESSONS[-1]
    assert [lesson(rung.number) for rung in LESSONS] == LESSONS
    assert BEST.with_(forward=str) == DecodeParts(BEST.block_tables, str, BEST.kv_append)


def test_each_part_is_built_once_from_the_model_the_cache_and_what_was_settled(small_model):
    built = []

    def watched(part):
        def build(*given):
            built.append(given)
            return part(*given)

        return build

    parts = DecodeParts(watched(BEST.block_tables), watched(BEST.forward), watched(BEST.kv_append))
    engine = InferenceEngine(small_model, parts=parts)
    assert built == [(small_model, engine.kv, engine.config)] * 3


def test_each_lesson_changes_one_part_of_the_one_before():
    assert [rung.number for rung in LESSONS] == ["035", "036", "038", "059", "060", "061"]
    for before, after in itertools.pairwise(LESSONS):
        assert after.before == before.after
        assert len(after.changes) == 1
        old, new = (getattr(rung.after, after.changes[0]) for rung in (before, after))
        assert old.__name__ == new.__name__
        shared = [name for name in vars(old) if name in vars(new)]
        assert shared == [name for name in vars(new) if name in vars(old)]  # the same order: a short diff


def test_a_lesson_is_one_short_diff_of_the_live_source():
    assert LESSONS[0].diff() == ""
    for rung in LESSONS[1:]:
        lines = rung.diff().splitlines()
        changed = [line for line in lines if re.match(r"[+-](?![+-])", line)]
        assert lines[0] == f"--- {rung.changes[0]} before {rung.number}"
        assert 0 < len(changed) <= 50
    assert "-                self.kv.append_token(" in lesson("038").diff()
    assert "+            self.append_token_batch(layer_idx" in lesson("038").diff()


def test_a_notebook_shows_the_diff_and_builds_both_engines(small_model):
    rung = lesson("059")
    shown = rung.show_diff()
    assert str(shown) == rung.diff()
    assert shown._repr_markdown_() == f"```diff\n{rung.diff()}```"
    config = EngineConfig(block_size=8, max_batch_size=3)
    before, after = rung.engines(small_model, config)
    assert (type(before.decode_step.kv_append), type(after.decode_step.kv_append)) == (
        rung.before.kv_append,
        rung.after.kv_append,
    )
    assert before.model is after.model is small_model
    assert before.kv is not after.kv
    assert (before.config.block_size, after.config.max_batch_size) == (8, 3)


def test_an_unknown_lesson_is_refused_with_the_known_ones():
    with pytest.raises(LessonError) as caught:
        lesson("042")
    assert str(caught.value) == f"there is no lesson '042': give one of {', '.join(r.number for r in LESSONS)}, or best"
