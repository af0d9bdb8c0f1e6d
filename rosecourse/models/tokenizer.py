"""A tokenizer from a model's folder, and how few tokens a text can have."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from ..errors import RequestError
from .folder import TOKENIZER, TOKENIZER_CONFIG, ModelFolder, read_json, refused

END_OF_TEXT = "<|endoftext|>"  # GPT-2's, where tokenizer_config.json names none


def tokenizer_of(folder: ModelFolder) -> PreTrainedTokenizerFast:
    """The tokenizer of tokenizer.json, with the end of text of tokenizer_config.json. Raises `ModelError`."""
    path, known = folder.path / TOKENIZER, folder.path / TOKENIZER_CONFIG
    named = read_json(known).get("eos_token", END_OF_TEXT) if known.exists() else END_OF_TEXT
    end = named.get("content") if isinstance(named, dict) else named
    try:
        backend = Tokenizer.from_file(str(path))
        is_known = isinstance(end, str) and backend.token_to_id(end) is not None
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end if is_known else None)
    except Exception as error:  # tokenizers raises plain `Exception`
        raise refused(path, error) from error


def encode(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text. Raises `TypeError` for what no encoding has."""
    return tokenizer.encode(text, verbose=False)


def longest_token(tokenizer: Any) -> int | None:
    """The bytes of a vocabulary's longest token; None where a tokenizer is no byte-level BPE that keeps every byte."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(getattr(backend, "pre_tokenizer", None), ByteLevel) or backend.normalizer is not None:
        return None
    return max(map(len, backend.get_vocab()))


def check_length(text: str, longest: int | None, most: int) -> None:
    """Raise `RequestError` for a text so long that it has more than `most` tokens. longest: see `longest_token`."""
    least = -(-len(text) // longest) if longest else 0
    if least > most:
        raise RequestError(
            f"the prompt has {len(text)} characters, at least {least} tokens, as the longest of the vocabulary has "
            f"{longest} bytes: the engine takes at most {most}"
        )
