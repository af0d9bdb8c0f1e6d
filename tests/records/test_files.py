"""What `--json FILE` does to a file: its mode stays, a new one has the umask's, and it is never half-written."""

import json
import os
import stat

import pytest

from rosecourse.records.files import write_json


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000])
@pytest.mark.parametrize("kept", [None, 0o600, 0o664, 0o755, 0o400])
def test_a_file_keeps_its_mode_or_has_what_the_umask_leaves(tmp_path, umask, kept):
    """Hazard 40: a result that others must not read is not shown to them."""
    path, link = tmp_path / "x.json", tmp_path / "link"
    link.symlink_to("x.json")
    if kept is not None:
        path.write_text("old")
        path.chmod(kept)
    before = os.umask(umask)
    try:
        for name in (path, link):
            write_json(name, {"x": name.name})
            assert json.loads(path.read_text()) == {"x": name.name}
            assert stat.S_IMODE(path.stat().st_mode) == (0o666 & ~umask if kept is None else kept)
    finally:
        os.umask(before)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path, monkeypatch, call, error):
    """Hazard 40: whoever reads sees the old document or the new one, and nothing else is left."""

    def cut_short(*_):
        raise error

    path = tmp_path / "x.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"x": float("nan")})
    monkeypatch.setattr(os, call, cut_short)
    with pytest.raises(type(error)):
        write_json(path, {"x": "y" * 10_000})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.json", "old")]
