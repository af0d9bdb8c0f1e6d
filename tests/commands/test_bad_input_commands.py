"""Any command line at all: it runs, or it ends with one line on standard error and exit code 2. Never a traceback."""

import contextlib
import io
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rosecourse.commands import doctor, engines
from rosecourse.models import load
from rosecourse.models.gpt2 import GPT2Shape
from tests.support.commands import ALL

COMMANDS = {name: command for name, command in ALL.items() if name != "desk"}
SENSIBLE = {  # values that run, each a small piece of work
    "--prompt": ["Hello", "-", "My dear sister"],
    "--max-new-tokens": ["1", "3"],
    "--num-requests": ["1", "3"],
    "--max-batch-size": ["1", "2"],
    "--batch-size": ["1", "2"],
    "--prefill-max-batch-size": ["1"],
    "--repeat-runs": ["1", "2"],
    "--warmup-runs": ["0", "1"],
    "--pairs": ["2", "5"],
    "--prompt-tokens": ["1", "5"],
    "--threads": ["1"],
    "--block-size": ["1", "4", "64"],
    "--num-blocks": ["1", "40"],
    "--temperature": ["0", "1"],
    "--top-k": ["0", "5"],
    "--top-p": ["0.5", "1"],
    "--seed": ["0", "7"],
    "--device": ["cpu", "auto"],
    "--dtype": ["float32", "bfloat16"],
    "--lesson": ["035", "061", "best"],
    "--mode": ["online", "offline"],
    "--random-weights": ["gpt2"],
    "--submit-interval-ms": ["0", "0.5"],
    "--tokenize-workers": ["0", "2"],
    "--prefill-admission-policy": ["fifo"],
    "--json": ["out.json"],
}
SMALL = {  # given first: what follows counts
    "--prompt": "Hello",
    "--max-new-tokens": "2",
    "--num-requests": "2",
    "--repeat-runs": "1",
    "--warmup-runs": "0",
    "--batch-size": "2",
    "--pairs": "5",
    "--random-weights": "gpt2",
    "--device": "cpu",
}
HUGE = ["1" + 12 * "0", "1" + 30 * "0", str(2**31), str(2**63), str(2**64), "1" + 400 * "0", "9" * 4300, "1" * 5000]
ODD = ["", " ", "\0", "\udcff", "🙂" * 3, "é\n\ttab", "a" * 300, "'\"$(ls)"]
ODD += [
    "-1",
    "0",
    "-0",
    "1.5",
    "1e3",
    "1_0",
    "٣",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "None",
    "true",
    "x",
    "--",
    "-",
    "-x",
    "--seed",
    "../..",
    ".",
    "/",
    "no/such",
    "%s",
    "{0}",
]
ODD += ["cuda:99", "cpu:7", "cpu:-1", "meta", "gpt9", "someone/nothing", "mine.py:Part", ":"]
SWITCHES = [
    "--no-stop-on-eos",
    "--no-prefix-cache",
    "--pretok",
    "--paged-attn",
    "--dense",
    "--no-run",
    "--static-cache",
]
WRONG = ["--nonsense", "--max-new", "--prom", "-h", "-p", "--hf-model-id", "--json", "--seed", "stray", "--help", "-"]


@st.composite
def command_lines(draw):
    """Flags with sensible and odd values, abbreviated, repeated, contradictory, without their value, or unknown."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    mine = [flag for flag in SENSIBLE if flag in flags_of(name)]
    argv = [word for flag, value in SMALL.items() if flag in flags_of(name) for word in (flag, value)]
    if draw(st.booleans()) and "--random-weights" in argv:  # the shipped model, or another
        where = argv.index("--random-weights")
        argv[where : where + 2] = []
    for flag in draw(st.lists(st.sampled_from(mine), max_size=5)) if mine else []:
        values = st.sampled_from(SENSIBLE[flag]) if draw(st.integers(0, 2)) else st.sampled_from([*ODD, *HUGE])
        value = draw(values | st.text(max_size=5) if draw(st.integers(0, 9)) == 0 else values)
        argv += draw(st.sampled_from([[flag, value], [f"{flag}={value}"]]))
    if draw(st.integers(0, 3)) == 0:
        argv.append(draw(st.sampled_from([*WRONG, *SWITCHES])))
    if name != "doctor" and draw(st.integers(0, 9)) == 0:
        argv += ["--hf-model-id", draw(st.sampled_from(ODD))]
    return name, [
        *argv,
        *draw(st.lists(st.sampled_from([s for s in SWITCHES if s in flags_of(name)] or [""]), max_size=2)),
    ]


def flags_of(name, known={}):  # noqa: B006 (a cache)
    if name not in known:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            COMMANDS[name].main(["--help"])
        known[name] = set(out.getvalue().replace(",", " ").split())
    return known[name]


@pytest.fixture(scope="module")
def small_machine(model):
    """Small models, no network and few checks."""
    tiny = GPT2Shape(vocab_size=4096, context=64, width=16, num_layers=2, num_heads=2)
    found = load.load_model

    def loaded(name=None, dtype=None, device="auto"):
        plain = name is None and dtype in (None, "float32") and device == "cpu"
        return model if plain else found(name, dtype, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(load, "RANDOM_SHAPES", {"gpt2": tiny})
        patch.setattr(engines, "load_model", loaded)
        patch.setattr(doctor, "CHECKS", {"python": doctor.check_python})
        patch.setattr("torch.set_num_threads", lambda number: None)
        yield


def run(name, argv):
    """Exit code, standard output and standard error of a command, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = COMMANDS[name].main(argv)
    return code, out.getvalue(), err.getvalue()


def test_any_command_line_runs_or_ends_in_one_line(small_machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ends = Counter()

    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(command_lines())
    def check(line):
        name, argv = line
        monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        code, out, err = run(name, argv)
        ends[code, name] += 1
        if code == 2:
            assert err.startswith(f"rosecourse {name}: error: ")
            assert err.count("\n") == 1
            assert err.endswith("\n")
            assert len(err) < 6000  # a value of 5,000 digits may be told as it was given
            after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            assert after == before  # nothing is written, and nothing is left half-written
        else:
            assert code == 0
            assert err == ""
            assert out
            for path in tmp_path.glob("*.json"):
                json.loads(path.read_text())

    check()
    for name in COMMANDS:
        assert ends[2, name] > 2, name  # both ends are met
        assert name == "lab" or ends[0, name] > 2, name
