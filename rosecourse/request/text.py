"""Token ids to text, as it comes."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from tokenizers.decoders import ByteLevel, DecodeStream

INCOMPLETE = "\ufffd"  # what a text ends in whose last character is not whole


class StreamedToken(NamedTuple):
    """One token of a stream, and the text that it adds: none within a character. finish_reason: of the last token."""

    token_id: int
    text: str
    finish_reason: str | None


class Pieces(dict[int, StreamedToken | None]):
    """What each token adds to a text that ends in a whole character; None where only a stream knows.

    With a byte-level tokenizer a whole character is the same after any text. Each piece is made once, for all readers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def are_known(self) -> bool:
        """Whether the tokenizer is such a one; else all pieces are None."""
        cleans_up = getattr(self.tokenizer, "clean_up_tokenization_spaces", False)  # it looks at several tokens at once
        return isinstance(self.tokenizer.backend_tokenizer.decoder, ByteLevel) and not cleans_up

    def __missing__(self, token_id: int) -> StreamedToken | None:
        text = "" if self.tokenizer is None else INCOMPLETE  # an engine of token ids alone has no texts
        if text and self.are_known:
            text = self.tokenizer.backend_tokenizer.decode([token_id], skip_special_tokens=True)
        self[token_id] = None if text.endswith(INCOMPLETE) else StreamedToken(token_id, text, None)
        return self[token_id]


class TextDecoder:
    """Token ids to pieces of text, one at a time, never half a character."""

    __slots__ = ("_length", "_pieces", "_stream", "_token_ids")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._stream: DecodeStream | None = None  # None where the text ends in a whole character, and pieces are known
        self._token_ids: list[int] = []  # those that the stream has got
        self._length = 0  # of the text that it has given

    def token(self, token_id: int, finish_reason: str | None = None) -> StreamedToken:
        """A token with the text that it adds; the last one, which has a finish_reason, with all that is left."""
        pieces = self._pieces
        if self._stream is None:
            if (known := pieces[token_id]) is not None:
                return known if finish_reason is None else known._replace(finish_reason=finish_reason)
            self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids.append(token_id)
        text = self._stream.step(pieces.tokenizer.backend_tokenizer, token_id) or ""
        if finish_reason is not None:
            text = pieces.tokenizer.decode(self._token_ids, skip_special_tokens=True)[self._length :]
        self._length += len(text)
        if text and pieces.are_known:  # the text ends in a whole character again
            self._stream, self._token_ids, self._length = None, [], 0
        return StreamedToken(token_id, text, finish_reason)
