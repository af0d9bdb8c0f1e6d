"""Token ids to text, as it comes."""

from __future__ import annotations

from typing import Any, NamedTuple

from tokenizers.decoders import DecodeStream


class StreamedToken(NamedTuple):
    """One token of a stream. text is what it adds, empty while a character is incomplete.

    finish_reason: None, and on the last token `stop` or `length`.
    """

    token_id: int
    text: str
    finish_reason: str | None


class TextDecoder:
    """Token ids to pieces of text, one at a time, never half a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._length = 0  # of the text given so far

    def text(self, token_id: int, last: bool = False) -> str:
        """What a token adds; with the last one, what is left of a character that never became whole."""
        self._token_ids.append(token_id)
        piece = self._stream.step(self._backend, token_id) or ""
        if last:
            piece = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)[self._length :]
        self._length += len(piece)
        return piece
