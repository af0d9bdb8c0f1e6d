"""Several engines on Ray Serve: an ingress, which is the server, and replicas that each have an engine process.

Serve has the HTTP side, the streams between processes, health checks, restarts and scaling. Two things it lacks are
ours. Its prefix router needs vLLM or SGLang (`ray.serve.llm` imports one of them), so `PrefixRouter` chooses by
prefixes. And Serve sends a request to another replica only until one has taken it, so the ingress asks once more if
that one dies before the client has had anything.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import ray
from fastapi import FastAPI
from prometheus_client import Metric, generate_latest
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RequestRouter

from .answer import ReplicaDied
from .app import make_app
from .engine_client import Choices, Delta, EngineClient
from .messages import Ready
from .protocol import ApiError
from .routes import Routes

NAME = "rosecourse"


class Replica(EngineClient):
    """An engine process; the ingress calls some methods through Serve. Ray replaces one whose engine has died."""

    async def __init__(self, work: Callable[[Connection], None], max_waiting: int) -> None:  # type: ignore[misc]
        super().__init__(work, max_waiting)
        self.lifespan = self.listening(self)
        await self.lifespan.__aenter__()

    def fail_all(self, error: ApiError) -> None:
        os._exit(1)  # Ray tells all that wait for it

    async def ready(self) -> Ready:
        return self.model

    async def families(self) -> list[Metric]:
        """The metrics; each sample says of which replica it is."""
        label, families = {"replica": serve.get_replica_context().replica_id.unique_id}, list(self.registry.collect())
        for family in families:
            family.samples = [sample._replace(labels=sample.labels | label) for sample in family.samples]
        return families

    async def generate(self, asked: Choices, stop: Sequence[str]) -> AsyncIterator[list[Delta] | ApiError]:
        """What `Generation.read` gives. An error is the last item."""
        try:
            with self.submit(asked, stop) as generation:
                while deltas := await generation.read():
                    yield deltas
        except ApiError as error:
            yield error


class RemoteGeneration:
    """A `Generation` in a replica."""

    def __init__(self, response: Any) -> None:
        self.response, self.num_tokens = response, 0

    async def read(self) -> list[Delta]:
        try:
            item: list[Delta] | ApiError = await anext(self.response, [])
        except RayActorError:
            raise ReplicaDied(500, "the replica has ended", code="replica_dead") from None
        if isinstance(item, ApiError):
            raise item
        self.num_tokens += len(item)
        return item


class Replicas:
    """All replicas, as the application of the ingress sees them: like one `EngineClient`."""

    listening = None
    refuses: ApiError | None = None

    def __init__(self, handle: Any, model: Ready) -> None:
        self.handle, self.model = handle, model

    @contextmanager
    def submit(self, asked: Choices, stop: Sequence[str]) -> Iterator[RemoteGeneration]:
        response = self.handle.options(stream=True).generate.remote(asked, stop)
        try:
            yield RemoteGeneration(response)
        finally:
            response.cancel()

    async def metrics(self) -> bytes:
        """Of all replicas that answer."""
        answers = await self.handle.broadcast("families").results_async(return_exceptions=True)
        of_replicas = [answer for answer in answers if not isinstance(answer, BaseException)]
        families: list[Metric] = []
        for family, *others in zip(*of_replicas, strict=True):
            family.samples += [sample for other in others for sample in other.samples]
            families.append(family)
        return generate_latest(SimpleNamespace(collect=lambda: families))


class Ingress:
    """The server. There is one, as two would each know half of the prefixes."""

    def __init__(self, handle: Any, api_key: str | None) -> None:
        self.handle, self.api_key = handle, api_key

    async def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(Replicas(self.handle, await self.handle.ready.remote()), self.api_key)


class PrefixRouter(RequestRouter):
    """Asks `Routes` for the replica of a request, by its first prompt. Serve calls these methods in the ingress."""

    def initialize_state(self) -> None:
        self.routes = Routes()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any) -> list[list[Any]]:
        """Replicas, the preferred first."""
        pending_request.routing_context.should_backoff = True  # if none of these takes it
        prompt = pending_request.args[0][0][0] if pending_request.args else []  # else it is no generation
        running = {one.replica_id: self.replica_queue_len_cache.get(one.replica_id) or 0 for one in candidate_replicas}
        home = self.routes.route(prompt, running)
        return [[one for one in candidate_replicas if (one.replica_id == home) == first] for first in (True, False)]


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
    ends = {"health_check_period_s": health_seconds, "graceful_shutdown_timeout_s": drain_seconds}
    replicas = serve.deployment(Replica).options(
        **options,
        **ends,
        ray_actor_options={"num_cpus": 1, "num_gpus": min(1, ray.cluster_resources().get("GPU", 0))},
        max_ongoing_requests=together + max_waiting,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        **ends, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=most * (together + max_waiting)
    )
    serve.run(ingress.bind(replicas.bind(work, max_waiting), api_key), name=NAME)


def until_signalled() -> None:
    """Wait for SIGTERM or SIGINT, and end the replicas when their requests are done."""
    told = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: told.set())
    told.wait()
    serve.shutdown()
    ray.shutdown()
