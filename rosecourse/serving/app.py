"""The HTTP side: OpenAI's endpoints over one engine process."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..errors import RequestError
from ..models.encoding import check_length, encode, longest_token
from .answer import Answer, Engine
from .protocol import ApiError, ChatRequest, CompletionRequest, Message, parse

MOST_BODY = 4 * 2**20  # bytes of a request
NO_TEMPLATE = "the model has no chat template: use /v1/completions, or a model with one"

T = TypeVar("T")


def make_app(engine: Engine, api_key: str | None = None) -> FastAPI:
    """The server's application. api_key: what clients must send; None takes any."""

    def authorise(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if api_key is not None and not hmac.compare_digest(given.encode(), api_key.encode()):
            raise ApiError(401, "give the server's key as `Authorization: Bearer KEY`", code="invalid_api_key")

    endpoints = Endpoints(engine)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(authorise)])
    v1.post("/completions")(endpoints.completions)
    v1.post("/chat/completions")(endpoints.chat)
    v1.get("/models")(endpoints.models)
    app = FastAPI(openapi_url=None, lifespan=engine.listening)
    app.include_router(v1)
    app.get("/health")(endpoints.health)
    app.get("/metrics")(endpoints.metrics)
    for error in (HTTPException, ClientDisconnect, Exception):
        app.exception_handler(error)(refused)
    return app


async def refused(request: Request, error: Exception) -> Response:
    """An error in OpenAI's shape, without a traceback."""
    if not isinstance(error, HTTPException):
        error = ApiError(500, "internal error")
    elif not isinstance(error, ApiError):
        error = ApiError(error.status_code, error.detail)
    return JSONResponse(error.body, error.status_code, error.headers)


class Endpoints:
    """What the server answers."""

    def __init__(self, engine: Engine) -> None:
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
        return Response(await self.engine.metrics(), media_type="text/plain; version=0.0.4")

    async def completions(self, request: Request) -> Response:
        asked = await self.read(request, CompletionRequest)
        prompts = await asyncio.to_thread(lambda: list(map(self.tokenize, asked.prompts)))
        return Answer(self.engine, asked, prompts, asked.max_tokens)

    async def chat(self, request: Request) -> Response:
        asked = await self.read(request, ChatRequest)
        ids = await asyncio.to_thread(self.chat_ids, asked.messages)
        most_tokens = asked.max_completion_tokens or asked.max_tokens or max(self.model.max_seq_len - len(ids), 1)
        return Answer(self.engine, asked, [ids], most_tokens)

    async def read(self, request: Request, kind: type[T]) -> T:
        """The request's body. Raises `ApiError` for one that is too large or wrong, or for another model."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY:
                raise ApiError(413, f"the request has more than {MOST_BODY} bytes")
        asked: Any = parse(bytes(body), kind)
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

    def chat_ids(self, messages: list[Message]) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ApiError(400, NO_TEMPLATE, "messages", "no_chat_template")
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises
            raise ApiError(400, f"the chat template refuses these messages: {error}", "messages") from None
        return self.tokenizer.encode(text, add_special_tokens=False)  # the template writes them
