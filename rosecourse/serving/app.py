"""The HTTP side: OpenAI's endpoints over one engine process."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import generate_latest
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..errors import RequestError
from ..models.encoding import check_length, encode, longest_token
from . import protocol
from .engine_client import EngineClient, Generation
from .protocol import ApiError

MOST_BODY = 4 * 2**20  # bytes of a request
DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it; a chat may go on to the end of the context
NO_TEMPLATE = "the model has no chat template: use /v1/completions, or a model with one"

T = TypeVar("T")


def make_app(engine: EngineClient, api_key: str | None = None) -> FastAPI:
    """The server's application. api_key: what clients must send; None takes any."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.listen()
        yield
        engine.close()

    def authorise(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if api_key is not None and not hmac.compare_digest(given.encode(), api_key.encode()):
            raise ApiError(401, "give the server's key as `Authorization: Bearer KEY`", code="invalid_api_key")

    endpoints = Endpoints(engine)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(authorise)])
    v1.post("/completions")(endpoints.completions)
    v1.post("/chat/completions")(endpoints.chat)
    v1.get("/models")(endpoints.models)
    app = FastAPI(openapi_url=None, lifespan=lifespan)
    app.include_router(v1)
    app.get("/health")(endpoints.health)
    app.get("/metrics")(endpoints.metrics)
    for error in (ApiError, HTTPException, ClientDisconnect, Exception):
        app.exception_handler(error)(refused)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """An error in OpenAI's shape, without a traceback."""
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, error.detail)
    elif not isinstance(error, ApiError):
        error = ApiError(500, "internal error")
    return JSONResponse(error.body, error.status, {"Retry-After": "1"} if error.status in (429, 503) else None)


class Endpoints:
    """What the server answers."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine, self.model, self.tokenizer = engine, engine.model, engine.model.tokenizer
        self.longest_token = longest_token(self.tokenizer)

    async def models(self) -> dict[str, Any]:
        model = {"id": self.model.name, "object": "model", "created": 0, "owned_by": "rosecourse"}
        return {"object": "list", "data": [model]}

    async def health(self) -> Response:
        if self.engine.refuses is not None:
            raise self.engine.refuses
        return Response()

    async def metrics(self) -> Response:
        return Response(generate_latest(self.engine.registry), media_type="text/plain; version=0.0.4")

    async def completions(self, request: Request) -> Response:
        asked = await self.read(request, protocol.CompletionRequest)
        prompts = await asyncio.to_thread(lambda: list(map(self.tokenize, asked.prompts)))
        most = DEFAULT_TOKENS if asked.max_tokens is None else asked.max_tokens
        return await self.answer(request, asked, prompts, most, protocol.Answers(self.model.name))

    async def chat(self, request: Request) -> Response:
        asked = await self.read(request, protocol.ChatRequest)
        ids = await asyncio.to_thread(self.chat_ids, msgspec.to_builtins(asked.messages))
        most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        most = max(self.model.max_seq_len - len(ids), 1) if most is None else most
        return await self.answer(request, asked, [ids], most, protocol.ChatAnswers(self.model.name))

    async def read(self, request: Request, kind: type[T]) -> T:
        """The request's body. Raises `ApiError` for one that is too large or wrong, or for another model."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY:
                raise ApiError(413, f"the request has more than {MOST_BODY} bytes")
        asked: Any = protocol.parse(bytes(body), kind)
        if asked.model != self.model.name:
            raise ApiError(404, f"the model {asked.model!r} is not served here", "model", "model_not_found")
        return asked

    def tokenize(self, prompt: Any) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if not isinstance(prompt, str):
            raise ApiError(400, "prompt mixes token ids and texts", "prompt")
        try:
            check_length(prompt, self.longest_token, self.model.max_seq_len - 1)
        except RequestError as error:
            raise ApiError(400, str(error), "prompt", "context_length_exceeded") from None
        return encode(self.tokenizer, prompt)

    def chat_ids(self, messages: list[dict[str, str]]) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ApiError(400, NO_TEMPLATE, "messages", "no_chat_template")
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises
            raise ApiError(400, f"the chat template refuses these messages: {error}", "messages") from None
        return self.tokenizer.encode(text, add_special_tokens=False)  # the template writes them

    async def answer(
        self, request: Request, asked: Any, prompts: list[list[int]], most_tokens: int, answers: protocol.Answers
    ) -> Response:
        """The choices of each prompt, as a whole or as a stream whose status is known with its first token.

        A client that goes away, or that stops reading, stops them.
        """
        choices = [(prompt_ids, params) for prompt_ids in prompts for params in asked.params(most_tokens)]
        if len(choices) > protocol.MOST_CHOICES:
            raise ApiError(400, f"{len(choices)} choices: a request may have {protocol.MOST_CHOICES}", "n")
        generation = self.engine.submit(choices, asked.stops)

        def usage() -> dict[str, int]:
            told = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": generation.num_tokens}
            return told | {"total_tokens": sum(told.values())}

        async def events() -> AsyncIterator[bytes]:
            more = {"usage": None} if asked.stream_options.include_usage else {}
            deltas = first
            try:
                while deltas:
                    yield b"".join(answers.event([answers.part(*delta)], **more) for delta in deltas)
                    deltas = await generation.read()
            except ApiError as error:
                yield protocol.sse(error.body)
                return
            yield answers.event([], usage=usage()) if more else b""
            yield b"data: [DONE]\n\n"

        async def stop() -> None:
            self.engine.cancel(generation)

        try:
            if asked.stream:
                first = await unless_gone(request, generation.read())
                after = BackgroundTask(stop)
                return StreamingResponse(events(), media_type="text/event-stream", background=after)
            whole = await unless_gone(request, whole_texts(generation, len(choices)))
            return Response(answers.whole(*whole, usage()), media_type="application/json")
        except BaseException:
            await stop()
            raise


async def whole_texts(generation: Generation, count: int) -> tuple[list[str], list[str | None]]:
    """Text and finish reason of each choice, when all have ended."""
    texts = [""] * count
    reasons: list[str | None] = [None] * count
    while deltas := await generation.read():
        for choice, text, reason in deltas:
            texts[choice] += text
            reasons[choice] = reason
    return texts, reasons


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What some work gives. Raises `ClientDisconnect`, and stops it, when nobody waits for it any more."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
