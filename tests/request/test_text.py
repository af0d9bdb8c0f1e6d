"""Token ids to text, one at a time: the pieces are those that a stream of the tokenizer gives, whatever the ids."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rosecourse.models.load import SHIPPED_MODEL
from rosecourse.request.text import Pieces, TextDecoder


def spelled(data):
    """Bytes as the characters that a byte-level vocabulary writes them in."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = (byte for byte in range(256) if byte not in kept)
    letters = {byte: chr(byte) for byte in kept} | {byte: chr(256 + n) for n, byte in enumerate(moved)}
    return "".join(letters[byte] for byte in data)


HARD = [  # tokens of several bytes, whole and in parts, and some that are in no text
    *("a", " b", "ï", "€", "😀", "\ufffd", "a\ufffd", "\ufffdb"),
    *(b"\xe2", b"\xe2\x82", b"\x82\xac", b"\xf0\x9f", b"\x98\x80", b"x\xe2", b"\xacy", b"\xacy\xe2", b"\xff", b"\xffz"),
]


def made(decoder, more=()):
    """A tokenizer of all bytes, of the hard tokens, and of some that are added."""
    tokens = [spelled([byte]) for byte in range(256)]
    tokens += [spelled(token.encode() if isinstance(token, str) else token) for token in HARD]
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate(dict.fromkeys(tokens))}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoder
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens(["née", AddedToken("字")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(more))


def words():
    """A tokenizer whose tokens depend on those before them: between two of them is a space."""
    vocabulary = {word: n for n, word in enumerate(["a", "b", ".", "##c", "n't", "\ufffd"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)


CLEANS_UP = (
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
)
TOKENIZERS = {
    "shipped": AutoTokenizer.from_pretrained(SHIPPED_MODEL),
    "bytes": made(decoders.ByteLevel()),
    "several decoders": made(decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "bb")])),
    "cleans up": made(decoders.ByteLevel(), dict.fromkeys(CLEANS_UP, True)),
    "words": words(),
}
BY_BYTES = {"shipped", "bytes"}
each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)
PIECES = {name: Pieces(tokenizer) for name, tokenizer in TOKENIZERS.items()}  # each example finds more of them


def by_stream(tokenizer, token_ids, whole):
    """What is promised: a stream's pieces; with the last token, all that is left of the text."""
    stream, pieces = DecodeStream(skip_special_tokens=True), []
    for token_id in token_ids:
        pieces.append(stream.step(tokenizer.backend_tokenizer, token_id) or "")
    if whole:
        pieces[-1] = tokenizer.decode(token_ids, skip_special_tokens=True)[len("".join(pieces[:-1])) :]
    return pieces


def by_decoder(pieces, token_ids, whole):
    decoder, last = TextDecoder(pieces), len(token_ids) - 1
    reasons = ["length" if whole and n == last else None for n in range(len(token_ids))]
    tokens = [decoder.token(token_id, reason) for token_id, reason in zip(token_ids, reasons, strict=True)]
    assert [(token.token_id, token.finish_reason) for token in tokens] == list(zip(token_ids, reasons, strict=True))
    return [token.text for token in tokens]


def assert_as_by_stream(name, token_ids):
    for whole in (False, True):
        expected = by_stream(TOKENIZERS[name], token_ids, whole)
        assert by_decoder(PIECES[name], token_ids, whole) == expected, (name, token_ids)
    if name in BY_BYTES:
        assert "".join(expected) == TOKENIZERS[name].decode(token_ids, skip_special_tokens=True)


def hard_ids(name):
    """Tokens that are not whole characters, the special ones, and one that the tokenizer does not know."""
    tokenizer = TOKENIZERS[name]
    partial = [n for n in range(len(tokenizer)) if tokenizer.decode([n]).endswith("\ufffd")]
    return [*partial, *tokenizer.all_special_ids, *range(len(tokenizer) - 3, len(tokenizer) + 2)]


@each_tokenizer
def test_a_token_after_a_whole_or_partial_character(name):
    """Every token; pieces are known where tokens become bytes one by one."""
    before = [[65], hard_ids(name)[:1]]
    for token_id in range(len(TOKENIZERS[name]) + 2):
        for token_ids in before:
            assert_as_by_stream(name, [*token_ids, token_id])
    known = [token for n in range(len(TOKENIZERS[name])) if (token := Pieces(TOKENIZERS[name])[n]) is not None]
    assert bool(known) == (name in BY_BYTES)
    assert not any(token.text.endswith("\ufffd") for token in known)


@each_tokenizer
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_tokens_give_the_pieces_of_a_stream(name, data):
    few = st.integers(0, len(TOKENIZERS[name]) + 1)
    assert_as_by_stream(name, data.draw(st.lists(few | st.sampled_from(hard_ids(name)), min_size=1, max_size=30)))
    if name in BY_BYTES:  # each character is in the piece of the token that makes it whole
        text = data.draw(st.text(min_size=1) | st.text("aï€😀\ufffd", min_size=1))
        token_ids = TOKENIZERS[name].encode(text)
        assert "".join(by_decoder(PIECES[name], token_ids, whole=True)) == text
        assert_as_by_stream(name, token_ids)


def test_a_piece_is_made_once_for_all_requests():
    asked = []

    def decode(token_ids, skip_special_tokens):
        asked.extend(token_ids)
        return "a" * token_ids[0]

    pieces = Pieces(SimpleNamespace(backend_tokenizer=SimpleNamespace(decoder=decoders.ByteLevel(), decode=decode)))
    for _ in range(3):
        assert by_decoder(pieces, [5, 6, 5], whole=True) == ["a" * 5, "a" * 6, "a" * 5]
    assert asked == [5, 6]
    assert by_decoder(Pieces(None), [3, 200, 9], whole=True) == ["", "", ""]  # without a tokenizer
