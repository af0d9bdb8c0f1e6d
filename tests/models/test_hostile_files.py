"""Model folders made to hang or to fill the memory: each is refused, or loads without what nobody needs."""

import json
import os
import shutil
import socket
import struct
import tracemalloc

import pytest

from rosecourse import load_model
from rosecourse.models import folder as model_folder
from rosecourse.models.load import SHIPPED_MODEL
from tests.models.test_bad_input_models import HEADER_LENGTH, WEIGHTS, change_json, folder, loads, refused  # noqa: F401

MIB = 2**20
READ = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
NOT_READ = ["added_tokens.json", "special_tokens_map.json", "vocab.json", "merges.txt", "chat_template.jinja", "x.json"]


def most_memory(work):
    """Bytes of Python's objects that were there at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- what a config claims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [
        {"num_labels": 300_000},
        {"id2label": {str(n): "x" for n in range(20_000)}},
        {"summary_type": [[0] * 10_000]},
        {"architectures": ["X"] * 10_000},
        {"n_ctx": 10**12},
    ],
    ids=lambda claim: next(iter(claim)),
)
def test_fields_that_are_not_used_cost_nothing(folder, claim):  # noqa: F811
    """Hazard 39: nothing is built for a field of config.json that the engine does not use."""
    expected = loads(folder)
    change_json(folder / "config.json", **claim)
    assert most_memory(lambda: load_model(folder, device="cpu")) < 20 * MIB
    assert loads(folder) == expected


@pytest.mark.parametrize(
    "claim",
    [
        {"n_layer": 10**18},
        {"vocab_size": 10**12},
        {"n_positions": 10**12},
        {"n_embd": 2**40, "n_head": 2**40},
        {"n_inner": 10**12},
    ],
    ids=str,
)
def test_a_shape_that_the_weights_do_not_have_is_refused_before_anything_is_built(folder, claim):  # noqa: F811
    """Hazard 39: the sizes of config.json are those of the weights' headers, or nothing is made of them."""
    change_json(folder / "config.json", **claim)
    assert most_memory(lambda: refused(folder)) < 20 * MIB


def test_tokens_that_a_tokenizer_class_would_make_are_not_made(folder):  # noqa: F811
    change_json(folder / "tokenizer_config.json", tokenizer_class="T5Tokenizer", extra_ids=300_000)
    assert most_memory(lambda: loads(folder)) < 20 * MIB
    assert len(load_model(folder, device="cpu").tokenizer) == 4096


# -- what is no regular file --------------------------------------------------------------------------------------


def bound_socket(path):
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)


ODD = {
    "a FIFO": os.mkfifo,
    "a socket": bound_socket,
    "a folder": os.mkdir,
    "a device": lambda path: os.symlink("/dev/zero", path),
    "itself": lambda path: os.symlink(path.name, path),
    "a link to nothing": lambda path: os.symlink("nothing", path),
    "a FIFO behind a link": lambda path: (os.mkfifo(path.parent / "fifo"), os.symlink("fifo", path)),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_no_regular_file_is_refused_without_being_opened(folder, name, make, monkeypatch):  # noqa: F811
    """Hazard 39: a FIFO would wait for ever, a device would give for ever."""
    monkeypatch.chdir(folder)
    (folder / name).unlink()
    make(folder / name)
    refused(folder, f"{name}' cannot be read: ", "get the folder anew")


def test_a_fifo_that_comes_after_the_look_is_not_waited_for(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr(model_folder, "require_safe", lambda path: None)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "config.json' cannot be read: it is no regular file")


def test_files_that_are_not_used_are_not_opened(folder):  # noqa: F811
    expected = loads(folder)
    for name in NOT_READ:
        os.mkfifo(folder / name)
    assert loads(folder) == expected


# -- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("config.json", model_folder.MOST_JSON),
        ("generation_config.json", model_folder.MOST_JSON),
        ("tokenizer_config.json", model_folder.MOST_JSON),
        ("tokenizer.json", model_folder.MOST_TOKENIZER),
    ],
)
def test_a_json_file_has_a_size_that_it_may_have(folder, name, most):  # noqa: F811
    """Hazard 39: up to the limit it is read, and no byte more than that is held."""
    path = folder / name
    path.write_bytes(path.read_bytes().ljust(most))
    assert loads(folder)
    os.truncate(path, 2**40)
    says = f"{name}' cannot be read: it has 1,099,511,627,776 bytes, {name} may have {most:,};"
    assert most_memory(lambda: refused(folder, says)) < 20 * MIB


def test_a_header_of_the_weights_has_a_size_that_it_may_have(folder):  # noqa: F811
    def padded(length):
        header = WEIGHTS[8 : 8 + HEADER_LENGTH].ljust(length)
        return struct.pack("<Q", length) + header + WEIGHTS[8 + HEADER_LENGTH :]

    (folder / "model.safetensors").write_bytes(padded(model_folder.MOST_HEADER))
    assert loads(folder)
    (folder / "model.safetensors").write_bytes(padded(model_folder.MOST_HEADER + 8))
    refused(folder, "model.safetensors' cannot be read: its header has 4,194,312 bytes")


def test_a_pointer_of_git_lfs_is_not_taken_for_weights(folder):  # noqa: F811
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 548105171\n"
    (folder / "model.safetensors").write_text(pointer)
    refused(folder, "model.safetensors' is a pointer of git-lfs: `git lfs pull` fetches the weights")


# -- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ)
def test_a_link_stays_in_the_folder(folder, tmp_path, name):  # noqa: F811
    """Hazard 39: a link to another file of the folder is followed, one that leaves it is not."""
    expected = loads(folder)
    (folder / name).rename(folder / "kept")
    (folder / name).symlink_to("kept")
    assert loads(folder) == expected
    (folder / "kept").rename(tmp_path / "kept")
    for target in ("../kept", tmp_path / "kept"):
        (folder / name).unlink()
        (folder / name).symlink_to(target)
        refused(folder, f"{name}' cannot be read: it is a link that leaves the folder")


def hub_cache(root, model="models--someone--tiny"):
    """The shipped model as a hub's cache has it: a folder of links to blobs."""
    snapshot, blobs = root / model / "snapshots" / "0123abc", root / model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in SHIPPED_MODEL.iterdir():
        shutil.copy(path, blobs / f"sha-of-{path.stem}-{path.suffix[1:]}")
        (snapshot / path.name).symlink_to(f"../../blobs/sha-of-{path.stem}-{path.suffix[1:]}")
    return snapshot


def test_links_of_a_hub_cache(tmp_path, monkeypatch):
    """Hazard 39: from a snapshot into the blobs of the same model, and nowhere else."""
    snapshot = hub_cache(tmp_path)
    assert loads(snapshot) == loads(SHIPPED_MODEL)
    (tmp_path / "link").symlink_to(snapshot)
    assert loads(tmp_path / "link")
    other = hub_cache(tmp_path, "models--someone--other")
    config = snapshot / "config.json"
    for target in (
        other.parents[1] / "blobs" / "sha-of-config-json",
        other / "config.json",
        tmp_path / "models--someone--tiny" / "refs",
        "../../../outside",
    ):
        shutil.copy(SHIPPED_MODEL / "config.json", tmp_path / "outside")
        config.unlink()
        config.symlink_to(target)
        refused(snapshot, "config.json' cannot be read")


def test_a_hub_id_is_its_folder_in_the_cache(tmp_path, monkeypatch):
    """As the hub's client finds it without a network."""
    snapshot = hub_cache(tmp_path)
    (tmp_path / "models--someone--tiny" / "refs").mkdir()
    (tmp_path / "models--someone--tiny" / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = load_model("someone/tiny", device="cpu")
    assert (model.name, model.shape) == ("tiny", load_model(SHIPPED_MODEL, device="cpu").shape)
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    refused_as = r"'someone/tiny' is a 'mamba' model"
    with pytest.raises(Exception, match=refused_as):
        load_model("someone/tiny", device="cpu")
