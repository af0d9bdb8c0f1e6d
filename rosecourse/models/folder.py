"""A look at a model's folder before anything is loaded from it: is a file missing, damaged or not safe to open?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..checks import one_line
from ..errors import ModelError
from .gpt2 import GPT2Shape

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F64", "F32", "F16", "BF16")
MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks, which old files keep among the weights
PREFIX = "transformer."
ANEW = "get the folder anew, or write it with `save_pretrained` of transformers"


def unreadable(what: str, error: Exception) -> ModelError:
    """The error for a file or model that another library cannot read, with at most 200 characters of its reason."""
    return ModelError(f"{what} cannot be read: {one_line(error)[:200]}; {ANEW}")


def check_json(folder: Path) -> None:
    """Raise `ModelError` for the first file of the folder that is called `.json` and holds no JSON object."""
    for path in sorted(folder.glob("*.json")):
        read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ModelError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(repr(str(path)), error) from error
    return content


def check_weights(folder: Path, shape: GPT2Shape) -> None:
    """Raise `ModelError` unless the folder's safetensors hold the weights of this GPT-2, and no others.

    Only headers are read. A pickle beside them is never opened.
    """
    headers: dict[str, tuple[list[int], str]] = {}
    for path in _weight_files(folder):
        headers |= _header(path)
    bare = {name.removeprefix(PREFIX): header for name, header in headers.items() if not name.endswith(MASKS)}
    bare.pop("lm_head.weight", None)  # the same as wte.weight: a config that says otherwise has been refused
    where = f"the weights in {str(folder)!r} cannot be read"
    if 12 * shape.num_layers > len(bare):  # before `parameters` lists the names of a billion layers
        raise ModelError(f"{where}: config.json says {shape.num_layers} layers, the files have fewer; {ANEW}")
    wanted = shape.parameters()
    for name, size in wanted.items():
        if name not in bare:
            raise ModelError(f"{where}: no weights for {name!r}; {ANEW}")
        if tuple(bare[name][0]) != size:
            raise ModelError(f"{where}: {name!r} is {bare[name][0]}, by config.json it is {list(size)}; {ANEW}")
        if bare[name][1] not in FLOATS:
            raise ModelError(f"{where}: {name!r} is of type {bare[name][1]}, no {', '.join(FLOATS)}; {ANEW}")
    if unknown := sorted(bare.keys() - wanted.keys()):
        raise ModelError(f"{where}: {unknown[0]!r} is no weight of this model; {ANEW}")


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: a single one, or all that its index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ModelError(
            f"the model {str(folder)!r} cannot be read: it has no {WEIGHTS}, and the engine opens no pickle such as "
            "pytorch_model.bin, which can run any code; write the model with `save_pretrained` of transformers"
        )
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{str(folder / INDEX)!r} cannot be read: it has no weight_map of names; {ANEW}")
    for name in names.values():
        if not name.endswith(".safetensors") or Path(name).name != name:
            raise ModelError(f"{str(folder / INDEX)!r} names {name!r}, no safetensors file beside it; {ANEW}")
    return [folder / name for name in sorted(set(names.values()))]


def _header(path: Path) -> dict[str, tuple[list[int], str]]:
    """Shape and type of each tensor in a file. safetensors checks that the tensors fill the file without a gap."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            return {name: (one.get_shape(), one.get_dtype()) for name, one in slices.items()}
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise unreadable(repr(str(path)), error) from error
