"""An OpenAI-compatible server under load: requests at random moments, and when each of their tokens came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import aiohttp
import numpy as np
import pandas as pd

from ..errors import RequestFailed
from ..request.session import SessionTimes
from .metrics import per_request, throughput
from .workload import old_objects_spared

TOKEN_IDS = (1, 1000)  # of which prompts are made: every vocabulary has them
SILENCE = 120.0  # seconds after which a server is given up


@dataclass(frozen=True)
class Load:
    """Requests of one length to a server. base_url: with the /v1 at its end. Further fields go into each request."""

    base_url: str
    num_requests: int
    prompt_tokens: int
    new_tokens: int
    seed: int = 0
    api_key: str = ""

    @old_objects_spared()
    def run(self, rate: float) -> tuple[str, list[SessionTimes]]:
        """The server's model, and the times of each request: Poisson arrivals, so many a second on the average.

        A request counts as submitted at its scheduled arrival. Raises `RequestFailed` unless all have all their tokens.
        """
        try:
            with ThreadPoolExecutor(1) as thread:  # a notebook's own has an event loop already
                return thread.submit(asyncio.run, self._run(rate)).result()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError) as error:
            why = f"status {error.status}" if isinstance(error, aiohttp.ClientResponseError) else repr(error)
            remedy = "give the address of a server that runs, with its /v1"
            raise RequestFailed(f"{self.base_url} does not answer as OpenAI does ({why}): {remedy}") from None

    def drawn(self, rate: float) -> tuple[list[float], list[list[int]]]:
        """The seconds at which requests arrive, and their prompts; the last prompt is one more, which warms up."""
        draw = np.random.default_rng(self.seed)
        arrivals = draw.exponential(1 / rate, self.num_requests).cumsum().tolist()
        return arrivals, draw.integers(*TOKEN_IDS, (self.num_requests + 1, self.prompt_tokens)).tolist()

    async def _run(self, rate: float) -> tuple[str, list[SessionTimes]]:
        arrivals, prompts = self.drawn(rate)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        connector, headers = aiohttp.TCPConnector(limit=0), {"Authorization": f"Bearer {self.api_key}"}
        async with aiohttp.ClientSession(connector=connector, timeout=limits, headers=headers) as session:
            async with session.get(f"{self.base_url}/models", raise_for_status=True) as answer:
                model = (await answer.json())["data"][0]["id"]
            await self._ask(session, model, prompts.pop(), time.perf_counter())  # warms up
            start = time.perf_counter()
            moments = zip(prompts, (start + one for one in arrivals), strict=True)
            return model, await asyncio.gather(*(self._ask(session, model, *one) for one in moments))

    async def _ask(self, session: aiohttp.ClientSession, model: str, prompt: list[int], due: float) -> SessionTimes:
        """One request, sent when it is due. An event with a choice is a token, or several that came together."""
        await asyncio.sleep(due - time.perf_counter())
        times, usage = SessionTimes(submitted=due, admitted=due), 0
        asked = {"model": model, "prompt": prompt, "max_tokens": self.new_tokens, "temperature": 0, "stream": True}
        asked |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        async with session.post(f"{self.base_url}/completions", json=asked) as answer:
            if answer.status != 200:
                raise RequestFailed(f"{self.base_url} refuses a request ({answer.status}): {await answer.text()}")
            async for line in answer.content:
                event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                if event.get("choices"):
                    times.tokens.append(time.perf_counter())
                usage = (event.get("usage") or {}).get("completion_tokens", usage)
        found = max(usage, len(times.tokens))
        if found != self.new_tokens or not times.tokens:
            raise RequestFailed(f"a request gave {found} tokens of {self.new_tokens}: no figure is right")
        # Which of the events had several is not known: the gaps of 0 between them stand at the end.
        times.tokens += times.tokens[-1:] * (self.new_tokens - len(times.tokens))
        return times


def measure_rates(load: Load, rates: Sequence[float]) -> pd.DataFrame:
    """A row for each rate: throughput, and p50 and p99 of TTFT, TPOT and ITL in milliseconds."""
    return pd.DataFrame([row_of(load, rate, *load.run(rate)) for rate in rates]).round(2)


def row_of(load: Load, rate: float, model: str, times: Sequence[SessionTimes]) -> dict[str, str | float]:
    """The row of `measure_rates` for a run."""
    seconds = max(one.tokens[-1] for one in times) - min(one.submitted for one in times)
    row: dict[str, str | float] = {"model": model, "requests/s": rate, "requests": len(times)}
    row |= {
        "prompt": load.prompt_tokens,
        "new": load.new_tokens,
        "tokens/s": throughput(load.num_requests * load.new_tokens, seconds),
    }
    for name, samples in per_request([times]).items():
        if name in ("ttft", "tpot", "itl"):
            for percent in (50, 99):
                row[f"{name.upper()} p{percent}"] = 1e3 * float(np.percentile(samples, percent))
    return row
