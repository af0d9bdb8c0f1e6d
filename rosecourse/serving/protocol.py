"""OpenAI's requests, choices and errors. A field that would change the answer and is not known here is refused."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from ..config import SamplingParams

MOST_CHOICES = 128  # of a request
# Fields that change nothing with these values; clients send them so. null is the same as no field.
NEUTRAL: dict[str, Any] = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "logprobs": False}
NEUTRAL |= {"echo": False, "best_of": 1, "repetition_penalty": 1, "tools": [], "response_format": {"type": "text"}}
TYPES = {401: "authentication_error", 429: "rate_limit_error"}

T = TypeVar("T")
Count = Annotated[int, Meta(ge=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]


class ApiError(HTTPException):
    """What is wrong with a request, or with the server, as OpenAI says it."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message, {"Retry-After": "1"} if status in (429, 503) else None)
        kind = "server_error" if status >= 500 else TYPES.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class Fields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of requests may say, in the limits of `SamplingParams`. top_k and ignore_eos are vLLM's."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: int = 0
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] = 1
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False
    user: str = ""

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def params(self, most_tokens: int) -> list[SamplingParams]:
        """How the tokens of each of the n choices are chosen: choice i with seed + i."""
        seed = secrets.randbits(32) if self.seed is None else self.seed % 2**64
        how = (most_tokens, self.temperature, max(self.top_k, 0), self.top_p)
        return [SamplingParams(*how, seed + i, not self.ignore_eos) for i in range(self.n)]


class CompletionRequest(Fields):
    """Of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Count = 16  # as OpenAI has it

    id_prefix, kind = "cmpl", "text_completion"

    @property
    def prompts(self) -> list[Any]:
        """Texts, or lists of token ids."""
        several = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return list(self.prompt) if several else [self.prompt]

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        """A choice in an event, or in an answer that is no stream."""
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


class Message(TypedDict):
    role: str
    content: str


class ChatRequest(Fields):
    """Of /v1/chat/completions. Without a limit it goes on to the end of the context."""

    messages: list[Message]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None

    id_prefix = "chatcmpl"

    @property
    def kind(self) -> str:
        return "chat.completion.chunk" if self.stream else "chat.completion"

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        said = {"role": "assistant", "content": text}
        return {"index": index, "delta" if self.stream else "message": said, "finish_reason": reason}


Asked = CompletionRequest | ChatRequest


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
