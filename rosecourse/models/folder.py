"""A look at a model's folder before anything is loaded from it: is a file missing, damaged or not safe to open?"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError
from .files import ANEW, MOST_HEADER, MOST_JSON, MOST_TOKENIZER, is_there, read_json, refused, require_safe, unreadable
from .gpt2 import GPT2Shape

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
FILES = (CONFIG, "generation_config.json", TOKENIZER, TOKENIZER_CONFIG, INDEX)  # the JSON files of a model's folder
FLOATS = ("F64", "F32", "F16", "BF16")
MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks, which old files keep among the weights
PREFIX = "transformer."
HEAD = "lm_head.weight"  # the same as wte.weight: a config that says otherwise is refused


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
            if is_there(self.path / name):
                read_json(self.path / name, MOST_TOKENIZER if name == TOKENIZER else MOST_JSON)

    def config(self) -> dict[str, Any]:
        """What config.json says, as it stands there: who reads it takes the fields that it needs."""
        return read_json(self.path / CONFIG)

    def check_weights(self, shape: GPT2Shape) -> None:
        """Raise `ModelError` unless the safetensors hold the weights of this GPT-2, and no others.

        Only headers are read, and nothing is built that the files do not hold. A pickle beside them is never opened.
        """
        headers: dict[str, tuple[list[int], str]] = {}
        for path in self._weight_files():
            headers |= _header(path)
        check_headers({_bare(name): header for name, header in headers.items() if _is_used(name)}, shape, self.path)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by their names without the prefix, one at a time from the files; see `check_weights`."""
        return {
            _bare(name): tensor
            for path in self._weight_files()
            for name, tensor in _tensors(path).items()
            if _is_used(name)
        }

    def _weight_files(self) -> list[Path]:
        """The safetensors files: a single one, or all that the index names."""
        if is_there(self.path / WEIGHTS):
            return [self.path / WEIGHTS]
        if not is_there(self.path / INDEX):
            raise ModelError(
                f"the model {self.source!r} cannot be read: it has no {WEIGHTS}, and the engine opens no pickle such "
                "as pytorch_model.bin, which can run any code; write the model with `save_pretrained` of transformers"
            )
        where = repr(str(self.path / INDEX))
        names = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise refused(where, "it has no weight_map of names")
        for name in names.values():
            if not name.endswith(".safetensors") or Path(name).name != name:
                raise ModelError(f"{where} names {name!r}, no safetensors file beside it; {ANEW}")
        return [self.path / name for name in sorted(set(names.values()))]


def check_headers(headers: Mapping[str, tuple[list[int], str]], shape: GPT2Shape, folder: Path) -> None:
    """Raise `ModelError` unless tensors of these shapes and types, by their names, are all of this GPT-2."""
    where = f"the weights in {str(folder)!r} cannot be read"
    if 12 * shape.num_layers > len(headers):  # before `parameters` lists the names of a billion layers
        raise ModelError(f"{where}: config.json says {shape.num_layers} layers, the files have fewer; {ANEW}")
    wanted = shape.parameters()
    for name, size in wanted.items():
        if name not in headers:
            raise ModelError(f"{where}: no weights for {name!r}; {ANEW}")
        found, kind = headers[name]
        if tuple(found) != size:
            raise ModelError(f"{where}: {name!r} is {found}, by config.json it is {list(size)}; {ANEW}")
        if kind not in FLOATS:
            raise ModelError(f"{where}: {name!r} is of type {kind}, no {', '.join(FLOATS)}; {ANEW}")
    if unknown := sorted(headers.keys() - wanted.keys()):
        raise ModelError(f"{where}: {unknown[0]!r} is no weight of this model; {ANEW}")


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)


def _is_used(name: str) -> bool:
    return not name.endswith(MASKS) and name != HEAD


def _header(path: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and type of each tensor in a file. safetensors checks that the tensors fill the file without a gap."""
    require_safe(path)
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
        if length > MOST_HEADER:
            raise ValueError(f"its header has {length:,} bytes, more than {MOST_HEADER:,}")
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            return {name: (one.get_shape(), one.get_dtype()) for name, one in slices.items()}
    except (SafetensorError, OSError, ValueError, MemoryError, struct.error) as error:
        raise unreadable(repr(str(path)), error) from error


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError, ValueError, MemoryError, RuntimeError) as error:
        raise unreadable(repr(str(path)), error) from error
