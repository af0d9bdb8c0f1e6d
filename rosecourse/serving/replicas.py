"""Several of this server on Ray Serve: one deployment, whose replicas each have an engine process.

Serve's proxy takes the requests, and sends each to the less busy of two replicas that it draws (power of two choices).
A replica that fails its health check is replaced.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from .app import make_app
from .engine_client import DEAD, EngineClient

NAME = "rosecourse"


class Replica:
    """One server; Serve calls its methods."""

    def __init__(self, work: Callable[[Connection], None], max_waiting: int, api_key: str | None) -> None:
        self.engine, self.api_key = EngineClient(work, max_waiting), api_key

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self.engine, self.api_key)

    def check_health(self) -> None:
        if self.engine.is_dead:
            raise RuntimeError(DEAD)


def start_replicas(
    work: Callable[[Connection], None],
    count: tuple[int, int],
    together: int,
    max_waiting: int = 1024,
    api_key: str | None = None,
    drain_seconds: float = 30.0,
    http: dict[str, Any] | None = None,
    proxies: str = "EveryNode",
    health_seconds: float = 10.0,
) -> None:
    """Start replicas on the Ray cluster of this process, or on a new one, and return when they answer.

    count: fewest and most; between them Serve scales so that each has about `together` requests. Where the cluster has
    GPUs, each replica has one. http: host and port of the proxies, which are on every node, or `HeadOnly`.
    """
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    serve.start(proxy_location=proxies, http_options=http)
    fewest, most = count
    scaling = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": together}
    options = {"num_replicas": fewest} if fewest == most else {"autoscaling_config": scaling}
    deployment = serve.deployment(serve.ingress()(Replica)).options(
        **options,
        ray_actor_options={"num_cpus": 1, "num_gpus": min(1, ray.cluster_resources().get("GPU", 0))},
        max_ongoing_requests=together + max_waiting,
        health_check_period_s=health_seconds,
        graceful_shutdown_timeout_s=drain_seconds,
    )
    serve.run(deployment.bind(work, max_waiting, api_key), name=NAME)


def until_signalled() -> None:
    """Wait for SIGTERM or SIGINT, and end the replicas when their requests are done."""
    told = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: told.set())
    told.wait()
    serve.shutdown()
    ray.shutdown()
