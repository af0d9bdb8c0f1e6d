"""Bad input at the edge: odd values, odd files, an output that takes nothing; one line each, and exit code 2."""

import io
import os
import re
import subprocess
import sys

import pytest
import torch

from tests.support.commands import (
    benchmark_scheduler,
    benchmark_streaming,
    benchmark_transformers,
    doctor,
    generate,
)

SMALL = ["--device", "cpu", "--num-requests", "2", "--max-new-tokens", "3", "--warmup-runs", "0", "--repeat-runs", "1"]
HELLO = ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "3"]


def assert_refused(capsys, main, argv, message):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"rosecourse \w+: error: .*{message}.*\n", captured.err), captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-blocks", "100000000"], "100000000 KV blocks of 64 tokens do not fit into memory"),
        (["--num-blocks", "1" + 30 * "0"], "is not in the range"),
        (["--block-size", str(2**62)], "1 KV blocks of 4611686018427387904 tokens do not fit into memory"),
        (["--random-weights", "gpt2", "--seed", str(2**63)], "9223372036854775808 is not in the range"),
        (["--threads", "0"], "0 is not in the range 1<=x<=1024"),
        (["--prompt", "\udcff"], "the prompt is not UTF-8 text"),
        (["--device", "c\np\nu"], r"no device is called 'c\\np\\nu'"),
        (["one\ntwo"], "Got unexpected extra argument .one two."),
    ],
    ids=lambda x: " ".join(x)[:30] if isinstance(x, list) else "",
)
def test_odd_values(capsys, flags, message):
    assert_refused(capsys, generate.main, [*HELLO, *flags], message)


def test_an_interval_longer_than_a_clock(capsys):
    argv = [*SMALL, "--submit-interval-ms", "1e300"]
    assert_refused(capsys, benchmark_streaming.main, argv, r"1e\+300 is not in the range 0")


@pytest.mark.parametrize("number", [10**6 + 1, 10**12, 10**30, 10**400])
@pytest.mark.parametrize(
    ("main", "flag"),
    [
        (benchmark_scheduler.main, "--num-requests"),
        (benchmark_scheduler.main, "--repeat-runs"),
        (benchmark_scheduler.main, "--warmup-runs"),
        (benchmark_streaming.main, "--tokenize-workers"),
        (benchmark_transformers.main, "--pairs"),
        (benchmark_transformers.main, "--prompt-tokens"),
    ],
)
def test_more_than_any_machine_gets_done(capsys, main, flag, number):
    assert_refused(capsys, main, ["--device", "cpu", flag, str(number)], "<=x<=1000000")


def test_a_seed_that_torch_has_not(capsys):
    argv = ["--device", "cpu", "--seed", str(2**64)]
    assert_refused(capsys, benchmark_transformers.main, argv, "18446744073709551616 is not in the range")


def test_random_prompts_longer_than_the_context_are_refused_before_they_are_made(capsys):
    argv = ["--device", "cpu", "--prompt-tokens", "1000000", "--batch-size", "16"]
    assert_refused(capsys, benchmark_transformers.main, argv, "the prompt has 1000000 tokens: the engine takes at most")


@pytest.mark.parametrize("name", ["", "\0"])
def test_an_empty_model_name_is_not_the_shipped_model(capsys, name):
    assert_refused(capsys, generate.main, [*HELLO, "--hf-model-id", name], "no model is called")


def test_doctor_says_in_one_line_what_is_wrong_with_its_flags(capsys):
    assert doctor.main(["--nonsense"]) == 2
    line = "rosecourse doctor: error: No such option '--nonsense'. (see --help)\n"
    assert capsys.readouterr().err == line


def test_a_batch_larger_than_the_work_takes_no_more_memory(capsys):
    assert benchmark_scheduler.main([*SMALL, "--max-batch-size", str(10**9)]) == 0
    assert "N: 2 requests" in capsys.readouterr().out


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is a folder: give the name of a file"),
        ("absent/x.json", "cannot be written: No such file or directory"),
        ("file/x.json", "cannot be written: Not a directory"),
        ("a" * 300, "cannot be written: File name too long"),
        ("fifo", "is no regular file"),
        ("loop", "cannot be written"),
        ("line\nbreak/x.json", "line break/x.json cannot be written"),
    ],
)
def test_a_json_file_that_cannot_be(capsys, tmp_path, monkeypatch, name, message):
    """Found before the run, and nothing is created, replaced or left behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    os.mkfifo("fifo")
    os.symlink("loop", "loop")
    before = sorted(os.listdir())
    monkeypatch.setattr("rosecourse.commands.engines.model_of", None)  # would break if it were called
    assert_refused(capsys, generate.main, [*HELLO, "--json", name], message)
    assert sorted(os.listdir()) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_is_not_replaced(capsys, tmp_path):
    file = tmp_path / "x.json"
    file.write_text("old")
    file.chmod(0o444)
    assert_refused(capsys, generate.main, [*HELLO, "--json", str(file)], "cannot be written: Permission denied")


def test_a_write_that_fails_after_the_run_leaves_nothing(capsys, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert generate.main([*HELLO, "--json", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.endswith("error: [Errno 28] No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to("folder/real.json")
    assert generate.main([*HELLO, "--json", str(link)]) == 0
    assert link.is_symlink()
    assert (tmp_path / "folder" / "real.json").read_text().startswith('{"command":"rosecourse generate')


# -- standard input and output ------------------------------------------------------------------------------------


def test_a_prompt_from_standard_input_ends_before_its_line_break(capsys, monkeypatch):
    texts = []
    for given in ("My dear", "My dear\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert generate.main([*HELLO, "--prompt", "-"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("My dear")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text_on_standard_input(capsys, monkeypatch, errors):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors=errors))
    assert_refused(capsys, generate.main, [*HELLO, "--prompt", "-"], "the prompt is not UTF-8 text")


def test_a_terminal_that_lacks_a_character(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert generate.main([*HELLO, "--prompt", "Émile"]) == 0
    assert out.buffer.getvalue().startswith(b"?mile")


def test_a_reader_that_goes_away(monkeypatch, capsys):
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert generate.main(HELLO) == 141
        print("more", flush=True)  # goes nowhere, where Python itself would write again and complain
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output():
    argv = [sys.executable, "-m", "rosecourse", "benchmark_scheduler", *SMALL]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    line = "rosecourse benchmark_scheduler: error: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_hub_id_without_a_network_as_a_user_sees_it():
    argv = [sys.executable, "-m", "rosecourse", "generate", *HELLO, "--hf-model-id", "someone/nothing"]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "a hub id needs the network once" in done.stderr


# -- threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "expected"), [([], 1), (["--threads", "2"], 2)])
def test_a_small_model_computes_in_one_thread_unless_told_otherwise(flags, expected):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert generate.main([*HELLO, *flags]) == 0
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
