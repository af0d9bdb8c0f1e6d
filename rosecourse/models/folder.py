"""A model's folder: whether a file is missing or damaged, before anything is loaded.

A file is opened only where that is safe, and never read beyond a limit.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ..checks import one_line, shown
from ..errors import ModelError
from .shape import ModelShape

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"
FILES = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, INDEX)  # the JSON files of a model's folder
FLOATS = ("F64", "F32", "F16", "BF16", torch.float64, torch.float32, torch.float16, torch.bfloat16)
# What old files keep among the weights: causal masks of GPT-2, frequencies of Llama.
NO_WEIGHT = re.compile(r"h\.\d+\.attn\.(masked_)?bias|layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
PREFIX = re.compile(r"^(transformer|model)\.")
GIT_LFS = b"version https://git-lfs.github.com/spec/"  # what stands in place of a large file until it is pulled
EMBEDDINGS, HEAD = ("wte.weight", "embed_tokens.weight"), "lm_head.weight"  # of tokens, by family

ANEW = "get the folder anew, or write it with `save_pretrained` of transformers"
MIB = 2**20
MOST_JSON = 4 * MIB  # bytes: a config is of 1 KB, the index of a model of 405 billion weights of 100 KB
MOST_TOKENIZER = 64 * MIB  # bytes: that of a vocabulary of 262,144 tokens is of 33 MB
MOST_HEADER = 4 * MIB  # bytes: safetensors takes 100 for each tensor, and large models have a few thousand of them

T = TypeVar("T")


@dataclass(frozen=True)
class ModelFolder:
    """A folder in the Hugging Face format. source: what it was called by who asked for it, a path or a hub id.

    Nothing but its JSON files, within limits of size, and the safetensors is ever opened.
    """

    path: Path
    source: str

    @property
    def name(self) -> str:
        """What tables and recorded files call the model."""
        return Path(self.source).resolve().name

    def check(self) -> None:
        """Raise `ModelError` for the first JSON file of the format that is there and holds no JSON object."""
        for name in FILES:
            if os.path.lexists(self.path / name):
                read_json(self.path / name, MOST_TOKENIZER if name == TOKENIZER else MOST_JSON)

    def config(self) -> dict[str, Any]:
        """What config.json says, as it stands there: who reads it takes the fields that it needs."""
        return read_json(self.path / CONFIG)

    def check_weights(self, shape: ModelShape) -> None:
        """Raise `ModelError` unless the safetensors hold the weights of a model of this shape, and no others.

        Only headers are read, and nothing is built that the files do not hold. A pickle beside them is never opened.
        """
        check_headers(self._used(_header), shape, repr(str(self.path)))

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by their names without the prefix, one at a time from the files; see `check_weights`."""
        return self._used(lambda file, name: file.get_tensor(name))

    def _used(self, read: Callable[[Any, str], T]) -> dict[str, T]:
        """What `read` makes of each tensor of the weights' files."""
        items = (item for path in self._weight_files() for item in _read(path, read).items())
        return used_weights(items, f"the model {self.source!r}")

    def eos_token_id(self) -> int | list[int] | None:
        """The token ids that end a text: those of generation_config.json, or of config.json where there is none, as
        `transformers` takes them. Raises `ModelError` for what is no id."""
        path = self.path / (GENERATION if os.path.lexists(self.path / GENERATION) else CONFIG)
        found = read_json(path).get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(token) is int for token in ids):
            raise refused(path, f"its eos_token_id is {shown(found)}, no token id and no list of them")
        return found

    def _weight_files(self) -> list[Path]:
        """The safetensors files: a single one, or all that the index names."""
        if os.path.lexists(self.path / WEIGHTS):
            return [self.path / WEIGHTS]
        index = self.path / INDEX
        if not os.path.lexists(index):
            raise ModelError(
                f"the model {self.source!r} cannot be read: it has no {WEIGHTS}, and the engine opens no pickle such "
                "as pytorch_model.bin, which can run any code; write the model with `save_pretrained` of transformers"
            )
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise refused(index, "it has no weight_map of names")
        for name in names.values():
            if not name.endswith(".safetensors") or Path(name).name != name:
                raise ModelError(f"{str(index)!r} names {name!r}, no safetensors file beside it; {ANEW}")
        return [self.path / name for name in sorted(set(names.values()))]


def check_headers(headers: Mapping[str, tuple[list[int], Any]], shape: ModelShape, model: str) -> None:
    """Raise `ModelError` unless tensors of these shapes and types, by their names, are all of such a model."""
    what = f"the weights in {model}"
    if shape.num_layers > len(headers):  # before `parameters` lists the names of a billion layers
        raise refused(what, f"config.json says {shape.num_layers} layers, the files have fewer")
    wanted = shape.parameters()
    if HEAD in headers and HEAD not in wanted:  # the token embedding once more
        wanted[HEAD] = wanted[embedding_of(wanted)]
    for name, size in wanted.items():
        if name not in headers:
            raise refused(what, f"no weights for {name!r}")
        found, kind = headers[name]
        if tuple(found) != size:
            raise refused(what, f"{name!r} is {found}, by config.json it is {list(size)}")
        if kind not in FLOATS:
            raise refused(what, f"{name!r} is of type {kind}, no {', '.join(map(str, FLOATS[:4]))}")
    if unknown := sorted(headers.keys() - wanted.keys()):
        raise refused(what, f"{unknown[0]!r} is no weight of this model")


def embedding_of(names: Iterable[str]) -> str:
    """The name of the token embedding among a model's weights."""
    return next(name for name in EMBEDDINGS if name in names)


def used_weights(items: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """Weights alone, by the names without the prefix. Raises `ModelError` where one name stands for two tensors."""
    used: dict[str, T] = {}
    for name, value in items:
        bare = PREFIX.sub("", name)
        if bare in used:
            raise ModelError(f"{what} has two tensors for the weight {bare!r}: leave one out, or {ANEW}")
        if not NO_WEIGHT.fullmatch(bare):
            used[bare] = value
    return used


def _header(file: Any, name: str) -> tuple[list[int], str]:
    """Shape and type of a tensor in a safetensors file."""
    one = file.get_slice(name)
    return one.get_shape(), one.get_dtype()


def _read(path: Path, read: Callable[[Any, str], T]) -> dict[str, T]:
    """What `read` makes of each tensor in a file. safetensors checks that they fill it without a gap."""
    require_safe(path)
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", start := file.read(8))
        if start == GIT_LFS[:8]:
            raise ModelError(f"{str(path)!r} is a pointer of git-lfs: `git lfs pull` fetches the weights")
        if length > MOST_HEADER:
            raise ValueError(f"its header has {length:,} bytes, more than {MOST_HEADER:,}")
        with safe_open(path, "pt") as file:
            return {name: read(file, name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError, ValueError, MemoryError, RuntimeError, struct.error) as error:
        raise refused(path, error) from error


def refused(what: Path | str, why: str | Exception) -> ModelError:
    """The error for a file or model that is not read. why: of an exception at most 200 characters are said."""
    what = what if isinstance(what, str) else repr(str(what))
    return ModelError(f"{what} cannot be read: {why if isinstance(why, str) else one_line(why)[:200]}; {ANEW}")


def require_safe(path: Path) -> None:
    """Raise `ModelError` unless this is a regular file of its folder's. Nothing is opened: a FIFO would wait.

    A link may lead to another file in the folder, or in a hub's cache from `models--X/snapshots/<revision>` to
    `models--X/blobs`; any other could show whoever names the folder a file that is not the model's.
    """
    try:
        folder, target = path.parent.resolve(), path.resolve(strict=True)
        is_regular = stat.S_ISREG(target.stat().st_mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise refused(path, error) from error
    repository = folder.parent.parent
    in_a_cache = repository.name.startswith("models--") and folder.parent.name == "snapshots"
    homes = [folder, repository / "blobs"] if in_a_cache else [folder]
    if not any(target.is_relative_to(home) for home in homes):
        raise refused(path, "it is a link that leaves the folder")
    if not is_regular:
        raise refused(path, "it is no regular file")


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most so many bytes. Raises `ModelError`."""
    require_safe(path)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):  # it may have been replaced
                raise refused(path, "it is no regular file")
            if found.st_size > most:
                raise refused(path, f"it has {found.st_size:,} bytes, {path.name} may have {most:,}")
            return file.read(found.st_size)
    except OSError as error:
        raise refused(path, error) from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The object in a JSON file of at most so many bytes. Raises `ModelError`."""
    try:
        content = json.loads(read_bytes(path, most))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
    except (ValueError, RecursionError) as error:
        raise refused(path, error) from error
    return content
