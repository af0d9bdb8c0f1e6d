"""A tokenizer from a model's folder, and how few tokens a text can have."""

from __future__ import annotations

import os.path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from ..errors import ModelError, RequestError
from .folder import MOST_TOKENIZER, TOKENIZER, TOKENIZER_CONFIG, ModelFolder, read_bytes, read_json, refused

END_OF_TEXT = "<|endoftext|>"  # GPT-2's, where tokenizer_config.json names none


def tokenizer_of(folder: ModelFolder) -> PreTrainedTokenizerFast:
    """The tokenizer that tokenizer.json describes, with the end of text that tokenizer_config.json names.

    No other file and no other field is used, and no class that the files name is made. Raises `ModelError`.
    """
    what = f"the model {folder.source!r}"
    if not os.path.lexists(folder.path / TOKENIZER):
        raise ModelError(f"{what} cannot be read: it has no tokenizer.json, from which text is streamed")
    content = read_bytes(folder.path / TOKENIZER, MOST_TOKENIZER)
    known = folder.path / TOKENIZER_CONFIG
    named = read_json(known).get("eos_token", END_OF_TEXT) if os.path.lexists(known) else END_OF_TEXT
    end = named.get("content") if isinstance(named, dict) else named
    try:
        backend = Tokenizer.from_str(content.decode())
        is_known = isinstance(end, str) and backend.token_to_id(end) is not None
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end if is_known else None)
    except Exception as error:  # tokenizers raises plain `Exception`
        raise refused(what, error) from error


def encode(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text, as `tokenizer.encode` gives them; without its detour where it adds nothing.

    A text of a few words takes about 3 us then, and not 11. Raises `TypeError` for what no encoding has.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    changes_nothing = isinstance(backend, Tokenizer) and backend.truncation is None and backend.padding is None
    if not changes_nothing or backend.encode_special_tokens != tokenizer.split_special_tokens:
        return tokenizer.encode(text, verbose=False)
    return backend.encode(text).ids


def longest_token(tokenizer: Any) -> int | None:
    """The bytes of a vocabulary's longest token, so that a text of N characters has at least N / longest tokens.

    None where a tokenizer may leave out, or take together, characters without a limit: only byte-level BPE with all
    256 bytes in its vocabulary, without a normalizer and without tokens that swallow spaces, keeps every byte.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or not isinstance(backend.model, BPE) or backend.normalizer is not None:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder().values()
    keeps_bytes = isinstance(backend.pre_tokenizer, ByteLevel) and vocabulary.keys() >= set(ByteLevel.alphabet())
    if not keeps_bytes or any(token.lstrip or token.rstrip for token in added):
        return None
    return max(*map(len, vocabulary), *(len(token.content.encode()) for token in added))


def check_length(text: str, longest: int | None, most: int) -> None:
    """Raise `RequestError` for a text of which the number of characters says that it has more than `most` tokens.

    longest: as `longest_token` gives it. It takes no time: the text is not tokenized.
    """
    least = -(-len(text) // longest) if longest else 0
    if least > most:
        raise RequestError(
            f"the prompt has {len(text)} characters, at least {least} tokens, as the longest of the vocabulary has "
            f"{longest} bytes: the engine takes at most {most}"
        )
