"""The server's end of the engine process: requests go in, and each has a `Generation` of the texts that come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily as Gauge

from ..config import SamplingParams
from ..errors import ConfigError
from ..request.text import Pieces, TextDecoder
from .messages import Cancel, Ready, Step, Submit
from .protocol import ApiError
from .stops import StopMatcher

DEAD = "the engine process has ended"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # of histograms
Choices = Sequence[tuple[list[int], SamplingParams]]  # of a request: a prompt and params for each
Delta = tuple[int, str, str | None]  # which choice, its new text, and how it has ended


class Generation:
    """What comes of a request. What waits for a slow reader is bounded by the tokens that it asked for."""

    def __init__(self, num_choices: int) -> None:
        self.num_choices, self.num_tokens = num_choices, 0  # choices that have not ended, tokens that have come
        self.submitted = time.perf_counter()
        self.queue: asyncio.Queue[Delta | ApiError] = asyncio.Queue()

    def put(self, item: Delta | ApiError) -> None:
        """What has come of it, or the error with which it ends."""
        if not isinstance(item, ApiError):
            self.num_tokens += 1
            self.num_choices -= item[2] is not None
        self.queue.put_nowait(item)

    async def read(self) -> list[Delta]:
        """What has come since the last call; empty after the end. Raises `ApiError`."""
        deltas: list[Delta] = []
        while not self.queue.empty() or (self.num_choices and not deltas):
            item = await self.queue.get()
            if isinstance(item, ApiError):
                raise item
            deltas.append(item)
        return deltas


@dataclass
class Choice:
    """One completion of a request on its way from token ids to text."""

    generation: Generation
    index: int  # which one of the request
    decoder: TextDecoder
    matcher: StopMatcher
    last_token: float | None = None  # when it came


class EngineClient:
    """Starts an engine process, and speaks with it from the event loop in which it is `listening`."""

    def __init__(self, work: Callable[[Connection], None], max_waiting: int = 1024) -> None:
        """work: what the process does, `run_engine` of an engine. max_waiting: most requests without a first token.

        Raises `ConfigError` where no engine can be made.
        """
        spawning = get_context("spawn")
        self.pipe, theirs = spawning.Pipe()
        self.process = spawning.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.model = self.pipe.recv()
        except EOFError:
            self.model = DEAD
        if not isinstance(self.model, Ready):
            raise ConfigError(self.model)
        self.pieces, self.max_waiting = Pieces(self.model.tokenizer), max_waiting
        self.choices: dict[int, Choice] = {}  # by number, until they have ended
        self.numbers, self.blocks_in_use = count(), 0
        self.sender = ThreadPoolExecutor(1)  # the event loop must not wait for a pipe that is full
        self.refuses: ApiError | None = None  # what new requests get: it drains, or the engine has died
        self.is_dead = False
        self.registry = CollectorRegistry()
        self.registry.register(self)
        histogram = partial(Histogram, registry=self.registry, buckets=SECONDS)
        self.ttft = histogram("rosecourse_ttft_seconds", "Until the first token")
        self.itl = histogram("rosecourse_itl_seconds", "Between tokens")

    def collect(self) -> Iterator[Gauge]:
        """The gauges, for prometheus_client."""
        yield Gauge("rosecourse_requests_waiting", "Requests without a first token", self.count(waiting=True))
        yield Gauge("rosecourse_requests_running", "Requests that get tokens", self.count(waiting=False))
        yield Gauge("rosecourse_kv_blocks", "Blocks of the KV cache", self.model.num_blocks)
        yield Gauge("rosecourse_kv_blocks_in_use", "Blocks that sessions hold", self.blocks_in_use)

    async def metrics(self) -> bytes:
        return generate_latest(self.registry)

    def count(self, waiting: bool) -> int:
        """Requests that wait for their first token, or that have had it."""
        requests = {choice.generation for choice in self.choices.values()}
        return sum((one.num_tokens == 0) == waiting for one in requests)

    @asynccontextmanager
    async def listening(self, app: object) -> AsyncIterator[None]:
        """The lifespan of an application: in it the engine's messages are taken; at its end the engine process ends."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.pipe.fileno(), self._receive)
        yield
        loop.remove_reader(self.pipe.fileno())
        self.sender.shutdown()
        self.pipe.close()
        self.process.join(5)
        self.process.kill()

    @contextmanager
    def submit(self, asked: Choices, stop: Sequence[str]) -> Iterator[Generation]:
        """Queue the choices of a request; those that still run at the end are stopped. Raises `ApiError` 429 or 503."""
        if self.refuses is not None:
            raise self.refuses
        if (waiting := self.count(waiting=True)) >= self.max_waiting:
            raise ApiError(429, f"{waiting} requests wait already: try again later", code="queue_full")
        generation = Generation(len(asked))
        numbers = list(islice(self.numbers, len(asked)))
        for index, (number, (prompt_ids, params)) in enumerate(zip(numbers, asked, strict=True)):
            self.choices[number] = Choice(generation, index, TextDecoder(self.pieces), StopMatcher(stop))
            self.send(Submit(number, prompt_ids, params))
        try:
            yield generation
        finally:
            for number in numbers:
                if self.choices.pop(number, None):
                    self.send(Cancel(number))

    def send(self, command: Submit | Cancel) -> None:
        self.sender.submit(self.pipe.send, command)

    def _receive(self) -> None:
        """Take all steps that have come: where the loop is behind, a stream's tokens go on together."""
        steps: list[Step] = []
        try:
            while not steps or self.pipe.poll():
                steps.append(self.pipe.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            self.is_dead, self.refuses = True, ApiError(503, DEAD, code="engine_dead")
        for step in steps:
            self._take_step(step)
        if self.is_dead:
            self.fail_all(ApiError(500, DEAD, code="engine_dead"))

    def _take_step(self, step: Step) -> None:
        self.blocks_in_use = step.blocks_in_use
        for number, token_id, reason in step.tokens:
            if number in self.choices:  # else nobody waits for it any more
                self._take(number, token_id, reason)
        for number, status, why in step.errors:
            if number in self.choices:
                error = ApiError(status, why.replace("max_new_tokens", "max_tokens"))  # the client's name for it
                self.choices[number].generation.put(error)

    def _take(self, number: int, token_id: int, reason: str | None) -> None:
        """A token becomes text for the reader of its choice. A stop string ends the choice before the engine does."""
        choice, now = self.choices[number], time.perf_counter()
        generation = choice.generation
        histogram = self.ttft if choice.last_token is None else self.itl
        histogram.observe(now - (choice.last_token or generation.submitted))
        choice.last_token = now
        text = choice.matcher.push(choice.decoder.token(token_id, reason).text, last=reason is not None)
        ended = "stop" if choice.matcher.found else reason
        generation.put((choice.index, text, ended))
        if ended is not None:
            del self.choices[number]
            if reason is None:
                self.send(Cancel(number))

    def fail_all(self, error: ApiError) -> None:
        """What runs ends with an error."""
        for choice in self.choices.values():
            choice.generation.put(error)
