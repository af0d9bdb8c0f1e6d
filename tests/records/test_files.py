"""What `--json FILE` does to a file: its mode stays, a new one has the umask's, and it is never half-written."""

import json
import os
import stat

import pytest

from rosecourse.records.files import write_json


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o077, 0o002, 0o000])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_new_file_has_what_the_umask_leaves(tmp_path, umask):
    """Hazard 40: a result that others must not read is not shown to them."""
    write_json(tmp_path / "x.json", {"x": 1})
    assert mode(tmp_path / "x.json") == 0o666 & ~umask


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o664, 0o755, 0o400])
def test_a_file_that_was_there_keeps_its_mode(tmp_path, umask, kept):
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(kept)
    write_json(path, {"x": 1})
    assert (mode(path), json.loads(path.read_text())) == (kept, {"x": 1})
    (tmp_path / "link").symlink_to("x.json")
    write_json(tmp_path / "link", {"x": 2})
    assert (mode(path), json.loads(path.read_text())) == (kept, {"x": 2})


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_cut_short_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call, error):
    """Hazard 40: whoever reads sees the old document or the new one."""

    def cut_short(*_):
        raise error

    path = tmp_path / "x.json"
    path.write_text("old")
    monkeypatch.setattr(os, call, cut_short)
    with pytest.raises(type(error)):
        write_json(path, {"x": "y" * 10_000})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.json", "old")]


def test_a_document_that_is_no_json_touches_nothing(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "x.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []
