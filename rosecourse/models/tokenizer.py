"""A tokenizer from a model's folder."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from .folder import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, ModelFolder, read_json, refused

END_OF_TEXT = "<|endoftext|>"  # GPT-2's, where tokenizer_config.json names none


def tokenizer_of(folder: ModelFolder) -> PreTrainedTokenizerFast:
    """The tokenizer of tokenizer.json, with the special tokens of tokenizer_config.json and a chat template that stands
    there or in chat_template.jinja. Raises `ModelError`."""
    path, config = folder.path / TOKENIZER, folder.path / TOKENIZER_CONFIG
    fields = read_json(config) if config.exists() else {}
    try:
        template = _chat_template(folder, fields)
        backend = Tokenizer.from_file(str(path))
        ends = {"eos_token": _known_token(backend, fields.get("eos_token", END_OF_TEXT))}
        begins = {"bos_token": _known_token(backend, fields.get("bos_token"))}  # chat templates write it
        return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **ends, **begins)
    except Exception as error:  # tokenizers raises plain `Exception`
        raise refused(path, error) from error


def _known_token(backend: Tokenizer, named: Any) -> str | None:
    """A special token of tokenizer_config.json; None where the vocabulary has no such token."""
    token = named.get("content") if isinstance(named, dict) else named
    return token if isinstance(token, str) and backend.token_to_id(token) is not None else None


def _chat_template(folder: ModelFolder, fields: dict[str, Any]) -> str | None:
    """The template of a chat, in Jinja; of several by name, the default."""
    path = folder.path / CHAT_TEMPLATE
    if path.exists():
        return path.read_text(errors="replace")
    found = fields.get("chat_template")
    named = found if isinstance(found, list) else [{"name": "default", "template": found}]
    texts = [one.get("template") for one in named if isinstance(one, dict) and one.get("name") == "default"]
    return next((text for text in texts if isinstance(text, str)), None)
