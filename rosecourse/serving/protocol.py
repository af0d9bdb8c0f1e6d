"""OpenAI's requests, errors and answers. A field that would change the answer and is not known here is refused."""

from __future__ import annotations

import secrets
import time
from typing import Any, TypeVar

import msgspec

from ..config import SamplingParams
from ..errors import ConfigError

MOST_CHOICES, MOST_STOPS, LONGEST_STOP = 128, 4, 1000  # of a request; in characters
# Fields that change nothing with these values; clients send them so. null is the same as no field.
NEUTRAL: dict[str, Any] = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "logprobs": False}
NEUTRAL |= {"echo": False, "best_of": 1, "repetition_penalty": 1, "tools": [], "response_format": {"type": "text"}}
TYPES = {401: "authentication_error", 429: "rate_limit_error"}

T = TypeVar("T")


class ApiError(Exception):
    """What is wrong with a request, or with the server, as OpenAI says it."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of requests may say. top_k and ignore_eos are vLLM's."""

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    n: int = 1
    stop: str | list[str] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False
    user: str = ""

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def params(self, most_tokens: int) -> list[SamplingParams]:
        """How the tokens of each of the n choices are chosen: choice i with seed + i. Raises `ApiError`."""
        if not 0 < self.n <= MOST_CHOICES:
            raise ApiError(400, f"n is {self.n}: give 1 to {MOST_CHOICES}", "n")
        if len(self.stops) > MOST_STOPS or not all(0 < len(one) <= LONGEST_STOP for one in self.stops):
            raise ApiError(400, f"stop: give at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters", "stop")
        seed = secrets.randbits(32) if self.seed is None else self.seed % 2**64
        how = (most_tokens, self.temperature, max(self.top_k, 0), self.top_p)
        try:
            return [SamplingParams(*how, seed + i, not self.ignore_eos) for i in range(self.n)]
        except ConfigError as error:
            message = api_names(str(error))
            raise ApiError(400, message, message.split()[0]) from None


class CompletionRequest(Asked):
    prompt: str | list[str | int | list[int]]

    @property
    def prompts(self) -> list[Any]:
        """Texts, or lists of token ids."""
        several = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return list(self.prompt) if several else [self.prompt]


class Message(msgspec.Struct):
    role: str
    content: str


class ChatRequest(Asked):
    messages: list[Message]
    max_completion_tokens: int | None = None


def api_names(text: str) -> str:
    """The engine's message with the name that the client used."""
    return text.replace("max_new_tokens", "max_tokens")


def parse(body: bytes, kind: type[T]) -> T:
    """A request of this kind. Raises `ApiError` 400 that names the field."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        given = {name: value for name, value in fields.items() if value is not None and value != NEUTRAL.get(name)}
        return msgspec.convert(given, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        name = str(error).partition("`$.")[2] or str(error).partition("field `")[2]
        raise ApiError(400, f"the request cannot be read: {error}", name.partition("`")[0] or None) from None


def sse(body: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class Answers:
    """The answers to one request, of /v1/completions."""

    prefix, kind, event_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str) -> None:
        self.head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def part(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        """A choice in an event."""
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    whole_part = part  # and in an answer that is no stream

    def event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return sse({**self.head, "object": self.event_kind, "choices": choices, **more})

    def whole(self, texts: list[str], reasons: list[str | None], usage: dict[str, int]) -> bytes:
        choices = [self.whole_part(*one) for one in zip(range(len(texts)), texts, reasons, strict=True)]
        return msgspec.json.encode({**self.head, "object": self.kind, "choices": choices, "usage": usage})


class ChatAnswers(Answers):
    """Of /v1/chat/completions."""

    prefix, kind, event_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def part(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": text}, "finish_reason": reason}

    def whole_part(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
