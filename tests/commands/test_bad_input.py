"""Bad input at the edge, of whatever kind, costs one line and exit code 2, and nothing is written."""

import contextlib
import io
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import MistralConfig

from rosecourse.commands import doctor, engines, serve
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.request.session import SessionTimes
from tests.support.commands import ALL, benchmark_scheduler, generate

HELLO = ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "3"]
GENERATE = [
    ("--hf-model-id /no/such/folder", "there is no model folder '/no/such/folder'"),
    ("--hf-model-id gpt2 --random-weights gpt2", "both name a model: give one of them"),
    ("--hf-model-id \0", "there is no model folder"),
    ("--device cuda:99", "there is no 'cuda:99' on this machine"),
    ("--device tpu", "no device is called 'tpu'"),
    ("--device c\np\nu", r"no device is called 'c\np\nu'"),
    ("--max-new-tokens 0", "'--max-new-tokens': 0 is not in the range"),
    ("--max-new-tokens 513", "max_new_tokens is 513: after a prompt of"),
    ("--block-size 3", "block_size is 3: give a power of two"),
    (f"--block-size {2**62}", "1 KV blocks of 4611686018427387904 tokens do not fit into memory"),
    ("--num-blocks 100000000", "100000000 KV blocks of 64 tokens do not fit into memory"),
    ("--num-blocks 1 --block-size 2 --max-new-tokens 4", "KV blocks, the pool has 1"),
    ("--prompt ", "the prompt is empty"),
    (f"--prompt {'word_' * 600}", "the engine takes at most"),
    ("--temperature -1", "temperature is -1.0"),
    ("--top-p 0", "top_p is 0.0"),
    ("--top-k -1", "top_k is -1"),
    ("--promt x", "No such option '--promt'. Did you mean '--prompt'? (see --help)"),
    ("--dense", "--dense goes with lessons 035 to 061: add --lesson 061, or leave"),
]
OTHERS = [
    ("benchmark_scheduler", f"--num-requests {10**6 + 1}", "1000001 is not in the range 1<=x<=1000000"),
    ("benchmark_streaming", "--submit-interval-ms nan", "--submit-interval-ms is nan: give a number"),
    ("benchmark_transformers", "--prompt-tokens 1000000", "the prompt has 1000000 tokens: the engine takes at most"),
    ("benchmark_transformers", "--max-new-tokens 600", "max_new_tokens is 600"),
    ("lab", "stray", "'stray' names no class: give a file and a class"),
    ("lab", "stray.py:Part", "'stray.py' is no file: give one that is there"),
]


def refused(capsys, name, argv):
    """The one line that a command ends with, when it is called with these words."""
    assert ALL[name].main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err.removeprefix(f"rosecourse {name}: error: ")


@pytest.mark.parametrize(("flags", "words"), GENERATE, ids=lambda text: text[:30])
def test_generate_when_input_is_bad_costs_one_line(capsys, flags, words):
    assert words in refused(capsys, "generate", [*HELLO, *flags.split(" ")])


@pytest.mark.parametrize(("name", "flags", "words"), OTHERS, ids=lambda text: text[:30])
def test_others_when_input_is_bad_cost_one_line(capsys, name, flags, words):
    device = [] if name == "lab" else ["--device", "cpu"]
    assert words in refused(capsys, name, [*device, *flags.split()])


def test_model_when_it_cannot_be_loaded_is_refused(capsys, tmp_path, monkeypatch):
    MistralConfig(num_hidden_layers=1).save_pretrained(tmp_path / "mistral")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cases = {tmp_path / "mistral": "a 'mistral' model", tmp_path / "empty": "holds no model"}
    for model, words in (cases | {"someone/nothing": "a hub id needs the network once"}).items():
        assert words in refused(capsys, "generate", [*HELLO, "--hf-model-id", str(model)])


def test_environment_when_it_is_bad_is_refused(capsys, monkeypatch):
    variable = "ROSELLM_TRITON_KV_APPEND_MIN_BATCH"
    for value, words in (("lots", f"(env var: '{variable}'): 'lots' is not a valid"), ("0", "0 is not in the range")):
        monkeypatch.setenv(variable, value)
        assert words in refused(capsys, "benchmark_scheduler", ["--pretok"])
    monkeypatch.setenv(variable, "64")
    assert engines.config_of(benchmark_scheduler.flags()).triton_kv_append_min_batch == 64


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is a folder: give the name of a file"),
        ("absent/x.json", "cannot be written: No such file or directory"),
        ("file/x.json", "cannot be written: Not a directory"),
        ("a" * 300, "cannot be written: File name too long"),
        ("fifo", "is no regular file"),
        ("line\nbreak/x.json", "line break/x.json cannot be written"),
    ],
    ids=lambda text: text[:20],
)
def test_json_file_when_it_cannot_be_is_found_before_the_run(capsys, tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    os.mkfifo("fifo")
    before = sorted(os.listdir())
    monkeypatch.setattr(engines, "model_of", None)  # would break if it were called
    assert words in refused(capsys, "generate", [*HELLO, "--json", name])
    assert sorted(os.listdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (lambda: None, "the prompt is empty"),
        (
            lambda: io.TextIOWrapper(io.BufferedWriter(io.BytesIO())),
            "the prompt cannot be read from standard input: not readable",
        ),
        (lambda: io.StringIO("Hello world! " * 2_000_000), "the prompt has 26000000 characters, at least 1733334 tok"),
        (lambda: io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8"), "the prompt is not UTF-8 text"),
        (lambda: io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8", "surrogateescape"), "the prompt is not UTF-8 text"),
    ],
    ids=["closed", "write-only", "endless", "bytes", "escaped bytes"],
)
def test_standard_input_when_it_is_odd_costs_one_line(capsys, monkeypatch, stdin, words):
    """Hazard 40."""
    monkeypatch.setattr("sys.stdin", stdin())
    assert words in refused(capsys, "generate", [*HELLO, "--prompt", "-"])


def test_prompt_from_standard_input_ends_before_its_line_break(capsys, monkeypatch):
    texts = []
    for given_text in ("My dear", "My dear\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(given_text))
        assert generate.main([*HELLO, "--prompt", "-"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("My dear")


def test_terminal_that_lacks_a_character_shows_a_question_mark(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert generate.main([*HELLO, "--prompt", "Émile"]) == 0
    assert out.buffer.getvalue().startswith(b"?mile")


# -- any command line -----------------------------------------------------------------------------------------------

SMALL = {  # given first: what follows counts
    **{"--prompt": "Hello", "--max-new-tokens": "2", "--num-requests": "2", "--repeat-runs": "1", "--warmup-runs": "0"},
    **{"--port": "0", "--batch-size": "2", "--pairs": "5", "--random-weights": "gpt2", "--device": "cpu"},
}
HUGE = ["1" + 12 * "0", str(2**31), str(2**63), str(2**64), "1" + 400 * "0", "9" * 4300, "1" * 5000]
ODD = ["", " ", "\0", "\udcff", "🙂" * 3, "é\n\ttab", "a" * 300, "'\"$(ls)", "-1", "0", "-0", "1", "1.5", "1e3", "1_0"]
ODD += ["٣", "nan", "inf", "-inf", "1e400", "None", "true", "--", "-", "-x", "--seed", "../..", ".", "/", "no/such"]
ODD += ["%s", "{0}", "cuda:99", "cpu:7", "cpu:-1", "meta", "gpt9", "someone/nothing", "mine.py:Part", ":", "out.json"]
WRONG = ["--nonsense", "--max-new", "--prom", "-h", "-p", "--hf-model-id", "--json", "stray", "--help", "-"]
COMMANDS = {name: called.command.params for name, called in ALL.items() if name != "desk"}


@st.composite
def command_lines(draw):
    """Flags with odd values, repeated, contradictory, without their value, or unknown."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    switches = [param.opts[0] for param in COMMANDS[name] if getattr(param, "is_flag", False)]
    valued = [param.opts[0] for param in COMMANDS[name] if param.opts[0] not in switches]
    argv = [word for flag, value in SMALL.items() if flag in valued for word in (flag, value)]
    for flag in draw(st.lists(st.sampled_from(valued), max_size=2)) if valued else []:
        value = draw(st.sampled_from([*ODD, *HUGE]) | st.text(max_size=5))
        argv += draw(st.sampled_from([[flag, value], [f"{flag}={value}"]]))
    argv += draw(st.lists(st.sampled_from(switches), max_size=2)) if switches else []
    return name, argv + draw(st.sampled_from([[], [], [draw(st.sampled_from(WRONG))]]))


class EngineHere:
    """In place of an engine process: the engine that a command line asks for is made here, and dropped."""

    is_dead = False

    def __init__(self, work, max_waiting):
        self.model = serve.engine_of(*work.args).model


@pytest.fixture
def small_machine(model, monkeypatch):
    """Small models, no network and few checks."""
    tiny = GPT2Shape(vocab_size=4096, context=64, width=16, num_layers=2, num_heads=2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(load, "RANDOM_SHAPES", {"gpt2": tiny})
    monkeypatch.setattr(doctor, "CHECKS", {"python": doctor.check_python})
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    monkeypatch.setattr("rosecourse.serving.engine_client.EngineClient", EngineHere)
    monkeypatch.setattr("rosecourse.serving.run.DrainingServer.__init__", lambda *arguments: None)
    monkeypatch.setattr("rosecourse.serving.run.DrainingServer.run", lambda *arguments: None)
    monkeypatch.setattr("rosecourse.commands.serve.find_spec", lambda name: None)  # Ray is not there
    times = SessionTimes(submitted=1.0, admitted=1.0, tokens=[2.0, 3.0])
    monkeypatch.setattr("rosecourse.measure.serving.Load.run", lambda load, rate: ("tiny", [times]))


def written(folder):
    """What lies in a folder, by path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_any_command_line_runs_or_ends_in_one_line(small_machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ends = Counter()

    @settings(max_examples=350, deadline=None, suppress_health_check=list(HealthCheck))
    @given(command_lines())
    def check(line):
        name, argv = line
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
        before, out, err = written(tmp_path), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = ALL[name].main(argv)
        ends[code, name] += 1
        said = err.getvalue()
        if code:
            assert code == 2
            assert said.startswith(f"rosecourse {name}: error: ")
            assert said.count("\n") == 1
            assert said.endswith("\n")
            assert written(tmp_path) == before
        else:
            assert said == ""
            assert out.getvalue()

    check()
    assert all(ends[2, name] and (name == "lab" or ends[0, name] > 2) for name in COMMANDS), ends
