"""Bad input at the edge: odd values, odd files, an output that takes nothing; one line each, and exit code 2."""

import io
import os
import re

import pytest
import torch

from tests.support.commands import benchmark_scheduler, generate

SMALL = ["--device", "cpu", "--num-requests", "2", "--max-new-tokens", "3", "--warmup-runs", "0", "--repeat-runs", "1"]
HELLO = ["--prompt", "Hello", "--device", "cpu", "--max-new-tokens", "3"]


def assert_refused(capsys, main, argv, message):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"rosecourse \w+: error: .*{message}.*\n", captured.err), captured.err


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
