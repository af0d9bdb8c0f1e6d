"""A look at a model's folder before anything is loaded from it: is a file missing, damaged or not safe to open?"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ..checks import shown
from ..errors import ModelError
from .files import ANEW, MOST_HEADER, MOST_JSON, MOST_TOKENIZER, is_there, read_json, refused, require_safe, unreadable
from .gpt2 import GPT2Shape

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"
FILES = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, INDEX)  # the JSON files of a model's folder
FLOATS = ("F64", "F32", "F16", "BF16", torch.float64, torch.float32, torch.float16, torch.bfloat16)
MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks, which old files keep among the weights
PREFIX = "transformer."
EMBEDDING, HEAD = "wte.weight", "lm_head.weight"  # GPT-2's output projection is its token embedding

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
            if is_there(self.path / name):
                read_json(self.path / name, MOST_TOKENIZER if name == TOKENIZER else MOST_JSON)

    def config(self) -> dict[str, Any]:
        """What config.json says, as it stands there: who reads it takes the fields that it needs."""
        return read_json(self.path / CONFIG)

    def check_weights(self, shape: GPT2Shape) -> None:
        """Raise `ModelError` unless the safetensors hold the weights of this GPT-2, and no others.

        Only headers are read, and nothing is built that the files do not hold. A pickle beside them is never opened.
        """
        headers = used_weights(self._items(_header), f"the model {self.source!r}")
        check_headers(headers, shape, repr(str(self.path)))

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by their names without the prefix, one at a time from the files; see `check_weights`."""
        return used_weights(self._items(_tensors), f"the model {self.source!r}")

    def eos_token_id(self) -> int | list[int] | None:
        """The token ids that end a text: those of generation_config.json, or of config.json where there is none, as
        `transformers` takes them. Raises `ModelError` for what is no id."""
        is_told = is_there(self.path / GENERATION)
        found = (read_json(self.path / GENERATION) if is_told else self.config()).get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if not all(type(token) is int for token in ids):
            where = repr(str(self.path / (GENERATION if is_told else CONFIG)))
            raise refused(where, f"its eos_token_id is {shown(found)}, no token id and no list of them")
        return found

    def _items(self, read: Callable[[Path], Mapping[str, T]]) -> Iterator[tuple[str, T]]:
        """What `read` finds in the weights' files, by the names that stand there."""
        return (item for path in self._weight_files() for item in read(path).items())

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


def check_headers(headers: Mapping[str, tuple[list[int], Any]], shape: GPT2Shape, model: str) -> None:
    """Raise `ModelError` unless tensors of these shapes and types, by their names, are all of this GPT-2."""
    where = f"the weights in {model} cannot be read"
    if 12 * shape.num_layers > len(headers):  # before `parameters` lists the names of a billion layers
        raise ModelError(f"{where}: config.json says {shape.num_layers} layers, the files have fewer; {ANEW}")
    wanted = shape.parameters()
    if HEAD in headers:
        wanted[HEAD] = wanted[EMBEDDING]
    for name, size in wanted.items():
        if name not in headers:
            raise ModelError(f"{where}: no weights for {name!r}; {ANEW}")
        found, kind = headers[name]
        if tuple(found) != size:
            raise ModelError(f"{where}: {name!r} is {found}, by config.json it is {list(size)}; {ANEW}")
        if kind not in FLOATS:
            raise ModelError(f"{where}: {name!r} is of type {kind}, no {', '.join(map(str, FLOATS[:4]))}; {ANEW}")
    if unknown := sorted(headers.keys() - wanted.keys()):
        raise ModelError(f"{where}: {unknown[0]!r} is no weight of this model; {ANEW}")


def used_weights(items: Mapping[str, T] | Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """By the names without the prefix, all but the masks. Raises `ModelError` where one name stands for two tensors."""
    used: dict[str, T] = {}
    for name, value in items.items() if isinstance(items, Mapping) else items:
        bare = name.removeprefix(PREFIX)
        if bare in used:
            raise ModelError(f"{what} has two tensors for the weight {bare!r}: leave one out, or {ANEW}")
        if not MASK.fullmatch(bare):
            used[bare] = value
    return used


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
