"""rosecourse serve: an OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import signal
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import click

from ..checks import require
from .late import engine_client, engine_process, engines, replicas, run
from .options import Flags, command, count, engine_options, model_options

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine

MOST_TOKENS = 4096


@command
@click.option("--host", default="127.0.0.1", help="Other than loopback, it needs --api-key.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one.")
@click.option("--api-key", envvar="ROSECOURSE_API_KEY", help="What clients must send.")
@click.option("--max-batch-size", type=count(), default=64, help="Most requests decoded together.")
@click.option("--max-seq-len", type=count(2), help=f"Prompt and completion. Default: the context, up to {MOST_TOKENS}.")
@click.option("--max-waiting", type=count(), default=1024, help="Requests without a first token; more get 429.")
@click.option("--drain-seconds", type=click.FloatRange(0), default=30.0, help="For running requests, after SIGTERM.")
@click.option("--replicas", type=count(), help="So many engines on Ray Serve, each with a GPU where there are some.")
@click.option("--max-replicas", type=count(), help="Up to so many, by their load.")
@model_options
@engine_options
def serve(flags: Flags) -> int:
    """Serve a model over HTTP, as OpenAI does.

    The exit code is 1 if the engine has died.
    """
    require(flags.drain_seconds >= 0, "--drain-seconds is nan: give a number")
    require(flags.api_key != "", "--api-key is empty: give a key")
    loopback = flags.host == "localhost" or is_loopback(flags.host)
    require(loopback or flags.api_key is not None, f"--host {flags.host} can be reached from outside: give --api-key")
    if flags.replicas is not None:
        return serve_replicas(flags)
    require(flags.max_replicas is None, "--max-replicas needs --replicas: give both")
    with run.listening_socket(flags.host, flags.port) as sock:
        engine = engine_client.EngineClient(partial(run_engine, flags), flags.max_waiting)
        print(f"{engine.model.name} listens on {base_url(flags.host, sock.getsockname()[1])}", flush=True)
        run.DrainingServer(engine, flags.api_key, flags.drain_seconds).run([sock])
    return int(engine.is_dead)


def serve_replicas(flags: Flags) -> int:
    require(find_spec("ray") is not None, "--replicas needs Ray: run `pip install 'rosecourse[ray]'`")
    most = flags.max_replicas or flags.replicas
    require(most >= flags.replicas, f"--max-replicas {most} is less than --replicas {flags.replicas}: give more")
    work, together = partial(run_engine, flags), (flags.max_batch_size, flags.max_waiting)
    server = (flags.host, flags.port), flags.api_key, flags.drain_seconds
    with replicas.running_replicas(work, (flags.replicas, most), *together, *server) as port:
        print(f"{flags.replicas} replicas listen on {base_url(flags.host, port)}", flush=True)
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda *_: None)
        signal.pause()
    return 0


def base_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run_engine(flags: Flags, pipe: Connection) -> None:
    """The work of the engine process: torch is imported there alone."""
    engine_process.run_engine(partial(engine_of, flags), pipe)


def engine_of(flags: Flags) -> InferenceEngine:
    model = engines.model_of(flags)
    longest = flags.max_seq_len or min(model.shape.context, MOST_TOKENS)
    return engines.engine_of(flags, model, max_batch_size=flags.max_batch_size, max_seq_len=longest)
