"""A model's folder in the Hugging Face format: whether a file is missing or damaged, before any weight is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ..checks import one_line
from ..errors import ModelError
from .shape import ModelShape

CONFIG, GENERATION, CHAT_TEMPLATE = "config.json", "generation_config.json", "chat_template.jinja"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# What old files keep among the weights: causal masks of GPT-2, frequencies of Llama.
NO_WEIGHT = re.compile(r"h\.\d+\.attn\.(masked_)?bias|layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
PREFIX = re.compile(r"^(transformer|model)\.")
GIT_LFS = b"version https://git-lfs"  # what stands in place of a large file until it is pulled
EMBEDDINGS, HEAD = ("wte.weight", "embed_tokens.weight"), "lm_head.weight"  # of tokens, by family
REMEDY = "download the folder again, or write it with `save_pretrained` of transformers"

T = TypeVar("T")


@dataclass(frozen=True)
class ModelFolder:
    """A folder. source: a path or a hub id. Only JSON files, a chat template and safetensors are opened."""

    path: Path
    source: str

    @property
    def name(self) -> str:
        """What tables and recorded files call the model."""
        return Path(self.source).resolve().name

    def eos_token_id(self) -> int | list[int] | None:
        """The token ids that end a text, by generation_config.json, or by config.json where there is none."""
        path = self.path / GENERATION
        return read_json(path if path.exists() else self.path / CONFIG).get("eos_token_id")

    def check_weights(self, shape: ModelShape) -> None:
        """Raise `ModelError` unless the files hold the weights of a model of this shape. Only headers are read."""
        headers = self._tensors(lambda file, name: file.get_slice(name).get_shape())
        wanted, what = shape.parameters(), f"the weights in {str(self.path)!r}"
        if HEAD in headers:  # it may be the token embedding once more
            wanted.setdefault(HEAD, wanted[embedding_of(wanted)])
        for name, size in wanted.items():
            if name not in headers:
                raise refused(what, f"no weights for {name!r}")
            if headers[name] != list(size):
                raise refused(what, f"{name!r} is {headers[name]}, by config.json it is {list(size)}")
        if unknown := sorted(headers.keys() - wanted.keys()):
            raise refused(what, f"{unknown[0]!r} is no weight of this model")

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights by their names without the prefix; see `check_weights`."""
        return self._tensors(lambda file, name: file.get_tensor(name))

    def _tensors(self, read: Callable[[Any, str], T]) -> dict[str, T]:
        """What `read` makes of each weight in the files."""
        found = [item for path in self._weight_files() for item in _read(path, read).items()]
        bare = {PREFIX.sub("", name): value for name, value in found}
        return {name: value for name, value in bare.items() if not NO_WEIGHT.fullmatch(name)}

    def _weight_files(self) -> list[Path]:
        """The safetensors files: a single one, or all that the index names."""
        index = self.path / INDEX
        if not index.exists():
            return [self.path / WEIGHTS]
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise refused(index, "it has no weight_map of names")
        return [self.path / name for name in sorted(set(names.values()))]


def embedding_of(names: Iterable[str]) -> str:
    """The name of the token embedding among a model's weights."""
    return next(name for name in EMBEDDINGS if name in names)


def _read(path: Path, read: Callable[[Any, str], T]) -> dict[str, T]:
    """What `read` makes of each tensor in a file. safetensors checks that they fill it without a gap."""
    try:
        with open(path, "rb") as file:
            if file.read(len(GIT_LFS)) == GIT_LFS:
                raise ModelError(f"{str(path)!r} is a pointer of git-lfs: `git lfs pull` fetches the weights")
        with safe_open(path, "pt") as file:
            return {name: read(file, name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError, ValueError, MemoryError, RuntimeError) as error:
        raise refused(path, error) from error


def refused(what: Path | str, why: str | Exception) -> ModelError:
    """The error for a file or model that is not read. why: of an exception at most 200 characters are said."""
    what = what if isinstance(what, str) else repr(str(what))
    return ModelError(f"{what} cannot be read: {why if isinstance(why, str) else one_line(why)[:200]}; {REMEDY}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ModelError`."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
    except (OSError, ValueError, RecursionError) as error:
        raise refused(path, error) from error
    return content
