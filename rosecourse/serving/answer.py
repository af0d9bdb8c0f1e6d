"""The answer to a request, whole or as a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Send

from .engine_client import Choices, Generation
from .messages import Ready
from .protocol import MOST_CHOICES, ApiError, Asked, sse


class Engine(Protocol):
    """An `EngineClient`, or what stands for several of them."""

    model: Ready
    choices: dict[int, Any]  # that have not ended
    refuses: ApiError | None
    is_dead: bool

    @property
    def listening(self) -> Any: ...  # the lifespan of an application
    def submit(self, asked: Choices, stop: Sequence[str]) -> AbstractContextManager[Generation]: ...
    def fail_all(self, error: ApiError) -> None: ...
    async def metrics(self) -> bytes: ...


class ReplicaDied(ApiError):
    """One of several engines has died in the middle of a request: another may answer, while the client has nothing."""


class Answer(StreamingResponse):
    """The choices of each prompt. Its status is known with the first token of a stream, or with the whole.

    A client that goes away, or that stops reading, stops them.
    """

    def __init__(self, engine: Engine, asked: Asked, prompts: list[list[int]], most_tokens: int) -> None:
        """Raises `ApiError` for too many choices."""
        self.engine, self.asked, self.prompts = engine, asked, prompts
        self.choices = [(prompt_ids, params) for prompt_ids in prompts for params in asked.params(most_tokens)]
        if len(self.choices) > MOST_CHOICES:
            raise ApiError(400, f"{len(self.choices)} choices: a request may have {MOST_CHOICES}", "n")
        self.head = {"id": f"{asked.id_prefix}-{secrets.token_hex(12)}", "created": int(time.time())}
        self.head |= {"model": engine.model.name, "object": asked.kind}
        super().__init__((), media_type="text/event-stream" if asked.stream else "application/json")

    async def stream_response(self, send: Send) -> None:
        """Called by Starlette, until the client goes. Raises `ApiError` before the status is sent."""
        try:
            await self._stream(send)
        except ReplicaDied:  # nothing has been sent
            await self._stream(send)

    async def _stream(self, send: Send) -> None:
        self.body_iterator = body = self.events() if self.asked.stream else self.whole()
        with self.engine.submit(self.choices, self.asked.stops) as self.generation:
            await anext(body)  # an empty chunk says that the status is known
            await super().stream_response(send)

    async def events(self) -> AsyncIterator[bytes]:
        more = {"usage": None} if self.asked.stream_options.include_usage else {}
        deltas = await self.generation.read()
        yield b""
        try:
            while deltas:
                yield b"".join(sse(self.head | {"choices": [self.asked.choice(*delta)]} | more) for delta in deltas)
                deltas = await self.generation.read()
        except ApiError as error:
            yield sse(error.body)
            return
        if more:
            yield sse(self.head | {"choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"

    async def whole(self) -> AsyncIterator[bytes]:
        texts = [""] * len(self.choices)
        reasons: list[str | None] = [None] * len(self.choices)
        while deltas := await self.generation.read():
            for index, text, reason in deltas:
                texts[index] += text
                reasons[index] = reason
        choices = list(map(self.asked.choice, range(len(texts)), texts, reasons))
        body = msgspec.json.encode(self.head | {"choices": choices, "usage": self.usage})
        self.headers["Content-Length"] = str(len(body))
        yield b""
        yield body

    @property
    def usage(self) -> dict[str, int]:
        told = {"prompt_tokens": sum(map(len, self.prompts)), "completion_tokens": self.generation.num_tokens}
        return told | {"total_tokens": sum(told.values())}
