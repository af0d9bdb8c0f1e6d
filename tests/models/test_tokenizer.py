"""Texts and tokens: how few tokens a text can have, so that what cannot fit is refused at once; and which they are."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rosecourse import EngineConfig, InferenceEngine, RequestError, load_model
from rosecourse.commands.engines import ids_of
from rosecourse.models.load import SHIPPED_MODEL
from rosecourse.models.tokenizer import END_OF_TEXT, check_length, encode, longest_token

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(alphabet=BYTES, more=()):
    """A tokenizer of single bytes, and of runs of `a` as long as given."""
    runs = ["a" * n for n in range(2, 6)]
    vocabulary = {token: n for n, token in enumerate([*alphabet, *runs])}
    backend = Tokenizer(models.BPE(vocabulary, [("a" * n, "a") for n in range(1, 5)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens(list(more))
    return backend


def wrapped(backend):
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def changed(**attributes):
    backend = byte_level()
    for name, value in attributes.items():
        setattr(backend, name, value)
    return backend


def test_the_longest_token_of_a_vocabulary():
    assert longest_token(wrapped(byte_level())) == 5
    assert longest_token(wrapped(byte_level(more=[AddedToken("née<|end|>")]))) == 11
    assert longest_token(AutoTokenizer.from_pretrained(SHIPPED_MODEL)) == len(" disappointment")


@pytest.mark.parametrize(
    "backend",
    [
        byte_level(alphabet=BYTES[1:]),  # it leaves a byte out
        byte_level(more=[AddedToken("x", lstrip=True)]),
        byte_level(more=[AddedToken("x", rstrip=True)]),
        changed(normalizer=normalizers.Strip()),
        changed(pre_tokenizer=pre_tokenizers.Whitespace()),
        Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown")),
    ],
)
def test_a_tokenizer_that_may_leave_text_out_has_no_bound(backend):
    assert longest_token(wrapped(backend)) is None


def test_what_is_no_tokenizer_has_no_bound():
    assert longest_token(None) is None
    assert longest_token(SimpleNamespace(backend_tokenizer=object())) is None


TOKENIZERS = [
    (one, longest_token(one))
    for one in (AutoTokenizer.from_pretrained(SHIPPED_MODEL), wrapped(byte_level(more=["<|endoftext|>"])))
]


@settings(max_examples=100, deadline=None)
@given(
    st.text()
    | st.text("a ", max_size=80)
    | st.lists(st.sampled_from([" disappointment", "é", "<|endoftext|>", " "])).map("".join)
)
def test_no_text_has_fewer_tokens_than_the_bound_says(text):
    for tokenizer, longest in TOKENIZERS:
        check_length(text, longest, len(tokenizer.encode(text, verbose=False)))  # raises if it says more


def test_the_bound_is_reached():
    """So a longer text, but no shorter one, is refused by its length."""
    check_length("a" * 50, 5, 10)
    with pytest.raises(RequestError, match=r"^the prompt has 51 characters, at least 11 tokens, as the longest of "):
        check_length("a" * 51, 5, 10)


@pytest.fixture
def never_tokenized(model, monkeypatch):
    """The shipped model, whose tokenizer must not be asked."""

    def encode(*_, **__):
        raise AssertionError("tokenized")

    monkeypatch.setattr(model.tokenizer, "encode", encode)
    return model


SAYS = r"^the prompt has 26000000 characters, at least 1733334 tokens, .* 15 bytes: the engine takes at most {}$"


@pytest.mark.parametrize("longest", [512, 20])
def test_a_text_that_cannot_fit_is_not_tokenized(never_tokenized, longest):
    """Hazard 39: 26 MB take a second and 2 GB to be tokenized, to be refused then."""
    engine = InferenceEngine(never_tokenized, EngineConfig(max_seq_len=longest, max_batch_size=1))
    with pytest.raises(RequestError, match=SAYS.format(longest - 1)):
        engine.new_session("Hello world! " * 2_000_000)
    with pytest.raises(RequestError, match=SAYS.format(511)):
        ids_of("Hello world! " * 2_000_000, never_tokenized)


def test_a_text_that_may_fit_is_tokenized(model):
    engine = InferenceEngine(model, EngineConfig(max_seq_len=20, max_batch_size=1))
    assert len(engine.tokenize(" disappointment" * 19)) == 19
    assert ids_of("Hello", model) == model.tokenizer.encode("Hello")


# -- text to token ids -----------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    ["", " ", "My dear", f"a{END_OF_TEXT}b", f" {END_OF_TEXT}", "\r\n\t\0", "e\u0301 \U0001f600"]
)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
def test_a_text_is_encoded_as_the_tokenizer_does(model, text):
    assert encode(model.tokenizer, text) == model.tokenizer.encode(text)


@pytest.mark.parametrize("changed", ["truncation", "padding"])
def test_what_somebody_has_set_on_a_tokenizer_is_the_tokenizers_business(changed):
    """A batch that was padded leaves that behind in the backend; the tokenizer itself undoes it."""
    tokenizer = load_model().tokenizer
    backend = tokenizer.backend_tokenizer
    if changed == "truncation":
        backend.enable_truncation(2)
    else:
        backend.enable_padding(length=9)
    assert encode(tokenizer, "Was it to be so") == load_model().tokenizer.encode("Was it to be so")


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_are_split_as_the_tokenizer_says_now(split):
    tokenizer = load_model().tokenizer
    tokenizer.split_special_tokens = split
    text = f"to be {END_OF_TEXT}"
    assert encode(tokenizer, text) == tokenizer.encode(text) == encode(tokenizer, text)
    assert (tokenizer.eos_token_id in encode(tokenizer, text)) is not split


def test_a_tokenizer_of_another_kind_encodes_itself():
    class Words:
        def encode(self, text, verbose):
            return [len(word) for word in text.split()]

    assert encode(Words(), "to be so") == [2, 2, 2]
