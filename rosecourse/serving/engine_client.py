"""The server's end of the engine process: requests go in, and each has a `Generation` of the texts that come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, Histogram

from ..config import SamplingParams
from ..errors import ConfigError
from ..request.text import Pieces, TextDecoder
from .messages import Cancel, Ready, Step, Submit
from .protocol import ApiError, api_names
from .stops import StopMatcher

DEAD = "the engine process has ended"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # of histograms


class Delta(NamedTuple):
    """What a choice gets with a token: a text, empty while it is held back, and how it ended, or None."""

    choice: int
    text: str
    finish_reason: str | None


class Choice:
    """One completion on its way from token ids to text. index: which of its request."""

    def __init__(self, index: int, decoder: TextDecoder, stop: Sequence[str]) -> None:
        self.index, self.decoder, self.matcher = index, decoder, StopMatcher(stop)
        self.last_token: float | None = None  # when it came

    def take(self, token_id: int, reason: str | None) -> Delta:
        text = self.matcher.push(self.decoder.token(token_id, reason).text, last=reason is not None)
        return Delta(self.index, text, "stop" if self.matcher.found else reason)


class Generation:
    """The choices of a request. What waits for a slow reader is bounded by the tokens that it asked for."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}  # by the numbers of their requests, until they have ended
        self.submitted, self.num_tokens = time.perf_counter(), 0
        self.queue: asyncio.Queue[Delta | ApiError] = asyncio.Queue()

    async def read(self) -> list[Delta]:
        """What has come since the last call; empty after the end. Raises `ApiError`."""
        deltas: list[Delta] = []
        while not self.queue.empty() or (self.choices and not deltas):
            item = await self.queue.get()
            if isinstance(item, ApiError):
                raise item
            deltas.append(item)
        return deltas


class EngineClient:
    """Starts an engine process, and speaks with it from one event loop. `listen` comes first there."""

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
        self.generations: dict[int, Generation] = {}  # by the numbers of their choices, until these have ended
        self.next_number = self.blocks_in_use = 0
        self.sender = ThreadPoolExecutor(1)  # the event loop must not wait for a pipe that is full
        self.refuses: ApiError | None = None  # what new requests get: it drains, or the engine has died
        self.is_dead = False
        self._make_metrics()

    def _make_metrics(self) -> None:
        self.registry = CollectorRegistry()
        for name, says, value in (
            ("requests_waiting", "Requests without a first token", lambda: self.count(True)),
            ("requests_running", "Requests that get tokens", lambda: self.count(False)),
            ("kv_blocks", "Blocks of the KV cache", lambda: self.model.num_blocks),
            ("kv_blocks_in_use", "Blocks that sessions hold", lambda: self.blocks_in_use),
        ):
            Gauge(f"rosecourse_{name}", says, registry=self.registry).set_function(value)
        self.ttft, self.itl = (
            Histogram(f"rosecourse_{name}_seconds", says, registry=self.registry, buckets=SECONDS)
            for name, says in (("ttft", "Until the first token"), ("itl", "Between tokens"))
        )

    def count(self, waiting: bool) -> int:
        """Requests that wait for their first token, or that have had it."""
        return sum((one.num_tokens == 0) == waiting for one in set(self.generations.values()))

    def listen(self) -> None:
        """Take the engine's messages in the event loop that runs."""
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.pipe.fileno(), self._receive)

    def submit(self, asked: Sequence[tuple[list[int], SamplingParams]], stop: Sequence[str] = ()) -> Generation:
        """Queue the choices of a request: a prompt and params for each. Raises `ApiError` 429 or 503."""
        if self.refuses is not None:
            raise self.refuses
        if (waiting := self.count(True)) >= self.max_waiting:
            raise ApiError(429, f"{waiting} requests wait already: try again later", code="queue_full")
        generation = Generation()
        for index, (prompt_ids, params) in enumerate(asked):
            number, self.next_number = self.next_number, self.next_number + 1
            generation.choices[number] = Choice(index, TextDecoder(self.pieces), stop)
            self.generations[number] = generation
            self.send(Submit(number, prompt_ids, params))
        return generation

    def cancel(self, generation: Generation) -> None:
        """Stop all choices that have not ended."""
        for number in list(generation.choices):
            self.send(Cancel(number))
            del generation.choices[number], self.generations[number]

    def send(self, command: Submit | Cancel) -> None:
        self.sender.submit(self.pipe.send, command)

    def _receive(self) -> None:
        try:
            step: Step = self.pipe.recv()
        except (EOFError, OSError):
            self.loop.remove_reader(self.pipe.fileno())
            self.is_dead, self.refuses = True, ApiError(503, DEAD, code="engine_dead")
            self.fail_all(ApiError(500, DEAD, code="engine_dead"))
            return
        self.blocks_in_use = step.blocks_in_use
        for number, token_id, reason in step.tokens:
            if number in self.generations:  # else nobody waits for it any more
                self._take(self.generations[number], number, token_id, reason)
        for number, status, why in step.errors:
            if number in self.generations:
                self.fail(self.generations[number], ApiError(status, api_names(why)))

    def _take(self, generation: Generation, number: int, token_id: int, reason: str | None) -> None:
        """A token of a choice becomes text for its reader. A stop string ends the choice."""
        choice, now = generation.choices[number], time.perf_counter()
        histogram = self.ttft if choice.last_token is None else self.itl
        histogram.observe(now - (choice.last_token or generation.submitted))
        choice.last_token = now
        generation.num_tokens += 1
        delta = choice.take(token_id, reason)
        if delta.finish_reason is not None:
            del generation.choices[number], self.generations[number]
            if reason is None:
                self.send(Cancel(number))
        generation.queue.put_nowait(delta)

    def fail(self, generation: Generation, error: ApiError) -> None:
        self.cancel(generation)
        generation.queue.put_nowait(error)

    def fail_all(self, error: ApiError) -> None:
        for generation in set(self.generations.values()):
            self.fail(generation, error)

    def close(self) -> None:
        """End the engine process."""
        self.loop.remove_reader(self.pipe.fileno())
        self.sender.shutdown()
        self.pipe.close()
        self.process.join(5)
        self.process.kill()
