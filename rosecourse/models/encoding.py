"""A text's token ids, and how few a text can have. Nothing here needs torch."""

from __future__ import annotations

from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from ..errors import RequestError


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
