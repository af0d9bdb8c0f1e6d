"""Measure `rosecourse serve` with and without replicas, and what readers see when one of two replicas is killed.

    PYTHONPATH=. python tools/record/replicas.py --rounds 3 --out data/replicas.csv --killed data/killed.csv

It needs the extra `ray`, and no other Ray cluster on the machine. No replicas is the server without Ray.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import click
import pandas as pd
import torch

# As Ray is imported: no token is written into the home folder, and other work does not slow replicas alone.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}

import ray
import ray.util.state

from rosecourse.measure.provenance import cpu_name
from rosecourse.measure.serving import Load, measure_rates

TINY = ("--model", "tiny-gpt2", "--device", "cpu", "--threads", "1")
STREAMS, TOKENS = 200, 200
SEEN = 10  # tokens that half of the streams have had when a process is killed


@contextmanager
def server(replicas: int, engine: Sequence[str] = TINY) -> Iterator[str]:
    """The base URL of a server with so many replicas; 0 is one without Ray. engine: flags of the engine."""
    words = ["serve", *engine, "--port", "0"]
    words += ["--replicas", str(replicas)] if replicas else []
    command = [sys.executable, "-m", "rosecourse", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            url = next(line.split()[-1] for line in process.stdout if "http://" in line)
            yield url
        finally:
            process.terminate()


def pid_of_one(kind: str) -> int:
    """The process of a replica, or of its engine."""
    ray.init(address="auto", log_to_driver=False)
    actors = ray.util.state.list_actors(filters=[("state", "=", "ALIVE")])
    replica = next(int(one.pid) for one in actors if one.class_name.endswith(":Replica"))
    ray.shutdown()
    engine = ["pgrep", "-P", str(replica), "-f", "spawn_main"]
    return replica if kind == "replica" else int(subprocess.check_output(engine))


async def read_stream(http: aiohttp.ClientSession, url: str, number: int, tokens: Counter[int]) -> str:
    """How a stream ends, in words. tokens: counts those of each stream."""
    asked = {"model": "tiny-gpt2", "prompt": [5, 6, 7 + number], "max_tokens": TOKENS, "ignore_eos": True}
    ended = "an end without a finish reason"
    try:
        async with http.post(f"{url}/completions", json=asked | {"stream": True}) as answer:
            async for line in answer.content:
                event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                tokens[number] += len(event.get("choices", ()))
                if "error" in event:
                    ended = f"an error event: {event['error']['message']}"
                elif any(choice["finish_reason"] for choice in event.get("choices", ())):
                    ended = "all tokens"
    except aiohttp.ClientError:
        ended = "a broken connection"
    return ended


async def streams_around_a_kill(url: str, kind: str) -> list[dict[str, Any]]:
    """A row for each ending that the streams saw, with how many saw it and with how many tokens."""
    pid, tokens = pid_of_one(kind), Counter[int]()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        streams = [asyncio.create_task(read_stream(http, url, n, tokens)) for n in range(STREAMS)]
        while sum(count >= SEEN for count in tokens.values()) < STREAMS / 2:
            await asyncio.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        ends = await asyncio.gather(*streams)
    rows = []
    for end, count in Counter(ends).items():
        had = [tokens[n] for n in range(STREAMS) if ends[n] == end]
        rows.append({"killed": kind, "saw": end, "streams": count, "fewest tokens": min(had), "most tokens": max(had)})
    return rows


@click.command(help=__doc__)
@click.option("--rounds", default=3, type=click.IntRange(1))
@click.option("--rates", default="256", help="Requests a second, on the average.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A CSV of throughput.")
@click.option("--killed", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A CSV of streams.")
def main(rounds: int, rates: str, out: Path, killed: Path) -> None:
    told = {
        "model": "tiny-gpt2",
        "gpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "ray": ray.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    ends: list[dict[str, Any]] = []
    for kind in ("replica", "engine"):
        with server(2) as url:
            ends += asyncio.run(streams_around_a_kill(url, kind))
    pd.DataFrame(ends).assign(**told).to_csv(killed, index=False)
    tables = []
    for number in range(rounds):
        for replicas in (0, 1, 2):
            with server(replicas) as url:
                load = Load(url, num_requests=256, prompt_tokens=64, new_tokens=32)
                table = measure_rates(load, [float(rate) for rate in rates.split(",")])
            tables.append(table.assign(replicas=replicas, round=number + 1, **told))
    pd.concat(tables).to_csv(out, index=False)


if __name__ == "__main__":
    main()
