"""Texts and tokens: how few tokens a text can have, so that what cannot fit is refused at once; and which they are."""

import json
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rosecourse import EngineConfig, InferenceEngine, RequestError, load_model
from rosecourse.commands.engines import ids_of
from rosecourse.models.encoding import check_length, encode, longest_token
from rosecourse.models.load import SHIPPED_MODEL
from rosecourse.models.tokenizer import END_OF_TEXT

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SHIPPED = AutoTokenizer.from_pretrained(SHIPPED_MODEL)


def byte_level(alphabet=BYTES, more=(), **attributes):
    """A tokenizer of single bytes, and of runs of `a` as long as given."""
    runs = ["a" * n for n in range(2, 6)]
    vocabulary = {token: n for n, token in enumerate([*alphabet, *runs])}
    backend = Tokenizer(models.BPE(vocabulary, [("a" * n, "a") for n in range(1, 5)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens(list(more))
    for name, value in attributes.items():
        setattr(backend, name, value)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


WORDS = Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown"))
LONGEST = [  # a tokenizer, the bytes of its longest token; None where it may leave text out
    (byte_level(), 5),
    (byte_level(more=[AddedToken("née<|end|>")]), 10),
    (SHIPPED, len(" disappointment")),
    (byte_level(normalizer=normalizers.Strip()), None),
    (byte_level(pre_tokenizer=pre_tokenizers.Whitespace()), None),
    (PreTrainedTokenizerFast(tokenizer_object=WORDS), None),
    (None, None),
    (SimpleNamespace(backend_tokenizer=object()), None),
]


@pytest.mark.parametrize(("tokenizer", "longest"), LONGEST)
def test_the_longest_token_is_known_where_no_text_is_left_out(tokenizer, longest):
    assert longest_token(tokenizer) == longest


TOKENIZERS = [(one, longest_token(one)) for one in (SHIPPED, byte_level(more=[END_OF_TEXT]))]
HARD = ["", " ", f"a{END_OF_TEXT}b", f" {END_OF_TEXT}", "\r\n\t\0", "e\u0301 \U0001f600", " disappointment" * 9]


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("a ", max_size=80) | st.sampled_from(HARD))
def test_a_text_has_no_fewer_tokens_than_the_bound(text):
    for tokenizer, longest in TOKENIZERS:
        check_length(text, longest, len(encode(tokenizer, text)))  # raises if it says more


def test_the_bound_of_a_text_is_reached():
    """So a longer text, but no shorter one, is refused by its length."""
    check_length("a" * 50, 5, 10)
    with pytest.raises(RequestError, match=r"^the prompt has 51 characters, at least 11 tokens, as the longest of "):
        check_length("a" * 51, 5, 10)


def test_a_text_that_cannot_fit_is_not_tokenized(model, monkeypatch):
    """Hazard 39: 26 MB take a second and 2 GB to be tokenized, to be refused then."""
    engine = InferenceEngine(model, EngineConfig(max_seq_len=20, max_batch_size=1))
    assert len(engine.tokenize(" disappointment" * 19)) == 19
    assert ids_of("Hello", model) == model.tokenizer.encode("Hello")
    monkeypatch.setattr(model, "tokenizer", SimpleNamespace())  # which cannot be asked
    says = "the prompt has 26000000 characters, at least 1733334 tokens, .* 15 bytes: the engine takes at most {}$"
    with pytest.raises(RequestError, match=says.format(19)):
        engine.new_session("Hello world! " * 2_000_000)
    monkeypatch.setattr(model, "tokenizer", SimpleNamespace(backend_tokenizer=SHIPPED.backend_tokenizer))
    with pytest.raises(RequestError, match=says.format(511)):
        ids_of("Hello world! " * 2_000_000, model)


HELLO, OTHER = "{{ bos_token }}Hello", "Other"


@pytest.mark.parametrize(
    ("said", "file", "template"),
    [
        (None, None, None),
        (HELLO, None, HELLO),
        (OTHER, HELLO, HELLO),  # the file comes before the config
        ([{"name": "tools", "template": OTHER}, {"name": "default", "template": HELLO}], None, HELLO),
        ([{"name": "tools", "template": OTHER}, "x"], None, None),
        (3, None, None),
    ],
)
def test_chat_template_of_a_folder_is_kept(tmp_path, said, file, template):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED_MODEL, folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": said}))
    if file:
        (folder / "chat_template.jinja").write_text(file)
    tokenizer = load_model(folder, device="cpu").tokenizer
    assert tokenizer.chat_template == template
    if template:
        assert tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False) == "<|endoftext|>Hello"
