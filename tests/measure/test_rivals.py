"""`transformers` generate as a rival: with a cache of a fixed size, and with its forward compiled."""

import pytest
import torch

from rosecourse import ConfigError, InferenceEngine, SamplingParams, lesson
from rosecourse.measure.rivals import Generate, as_transformers, time_pairs, transformers_completions
from tests.support.commands import benchmark_transformers

PROMPTS = [[1, 2, 3], [4, 5, 6]]
PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)
SMALL = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "4", "--pairs", "2", "--lesson", "061"]
COMPILED = Generate(static_cache=True, compiled=True)
compiler = torch.compile


@pytest.fixture
def compiles(monkeypatch, request):
    """Stands in for `torch.compile`, which makes kernels for half a minute; returns the ids that compiled calls had.

    request.param: what becomes of the forward instead; nothing, where it is left out.
    """
    seen, change = [], getattr(request, "param", lambda forward: forward)

    def compiled(forward, dynamic, mode):
        assert (dynamic, mode) == (False, "default")  # on a CPU
        fast = change(forward)

        def called(*args, **kwargs):
            seen.append(kwargs["input_ids"].tolist())
            return fast(*args, **kwargs)

        return called

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


def traced(forward):
    """Compiled up to the graph of operations, which is then run as it is."""
    return compiler(forward, dynamic=False, fullgraph=True, backend="eager")


def test_a_static_cache_gives_the_same_tokens(small_model, monkeypatch):
    theirs = as_transformers(small_model)
    caches = []
    forward = theirs.forward
    monkeypatch.setattr(
        theirs, "forward", lambda **given: caches.append(type(given["past_key_values"]).__name__) or forward(**given)
    )
    expected = transformers_completions(theirs, PROMPTS, 6)
    assert set(caches) == {"DynamicCache"}
    caches.clear()
    assert transformers_completions(theirs, PROMPTS, 6, Generate(static_cache=True).settings) == expected
    assert set(caches) == {"StaticCache"}


@pytest.mark.parametrize("compiles", [traced], indirect=True)
def test_the_forward_of_one_token_is_compiled_and_the_prompts_is_not(small_model, compiles):
    engine = InferenceEngine(small_model, parts=lesson("061").after)
    found = time_pairs(engine, PROMPTS, PARAMS, 2, COMPILED)
    assert found.same_tokens
    assert found.compiling > max(found.transformers)  # tracing alone takes a hundred times as long
    (expected,) = {tuple(map(tuple, transformers_completions(as_transformers(small_model), PROMPTS, 6)))}
    runs = 1 + 3  # that which compiles, the one that warms up and two that count
    assert compiles == [[[ids[n]] for ids in expected] for n in range(5)] * runs


def test_without_compiling_nothing_is_said_of_it(small_model, compiles):
    engine = InferenceEngine(small_model, parts=lesson("061").after)
    found = time_pairs(engine, PROMPTS, PARAMS, 2, Generate(static_cache=True))
    assert (found.same_tokens, found.compiling, compiles) == (True, None, [])


@pytest.mark.parametrize(
    ("flags", "name"),
    [(["--static-cache"], "static cache"), (["--static-cache", "--compile"], "static cache, compiled")],
)
def test_the_command_says_how_transformers_generated(flags, name, compiles, capsys):
    assert benchmark_transformers.main([*SMALL, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    if "--compile" in flags:
        assert lines.pop(0) == "Compiling the forward of transformers: up to some minutes ..."
        assert lines.pop(1).startswith("Compiling, and a first run: ")
    assert lines[0] == f"=== transformers generate ({name}) and the engine ==="
    assert lines[1] == "Same tokens: yes, 8 of them, greedy"
    assert bool(compiles) == ("--compile" in flags)


def test_compiling_needs_a_static_cache(capsys):
    assert benchmark_transformers.main([*SMALL, "--compile"]) == 2
    message = "--compile needs a cache of a fixed size: add --static-cache"
    assert capsys.readouterr().err == f"rosecourse benchmark_transformers: error: {message}\n"
    with pytest.raises(ConfigError, match="a compiled forward needs a static cache"):
        Generate(compiled=True)


def test_a_machine_without_a_compiler_is_told_in_one_line(monkeypatch, capsys):
    def refuses(forward, **settings):
        def called(*args, **kwargs):
            raise RuntimeError("No working C++ compiler found: (None, 'g++')\n\nSet TORCHDYNAMO_VERBOSE=1\n")

        return called

    monkeypatch.setattr(torch, "compile", refuses)
    assert benchmark_transformers.main([*SMALL, "--static-cache", "--compile"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "could not compile the forward of transformers (No working C++ compiler found: (None, 'g++'))" in line
    assert line.endswith("install a C++ compiler (g++), which it needs on a CPU, or do without compiling")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; on a CPU compiling takes half a minute")
def test_it_is_compiled_for_a_gpu(capsys):
    flags = ["--device", "cuda", "--dtype", "float32", "--static-cache", "--compile"]
    assert benchmark_transformers.main([*flags, "--batch-size", "2", "--max-new-tokens", "8", "--pairs", "2"]) == 0
    assert "Same tokens: " in capsys.readouterr().out
