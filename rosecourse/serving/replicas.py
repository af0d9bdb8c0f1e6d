"""Several engines on Ray Serve: replicas, which each have an engine process, and ingresses, which share a port.

Serve starts them, checks their health, scales replicas and routes requests. It sends each token of a stream twice, for
some tenths of a millisecond of a core each time: here an ingress is the server of one engine, and `link.py` brings the
tokens. Serve's prefix router needs vLLM or SGLang: `PrefixRouter` is ours. And Serve gives up a request that a replica
has taken: the ingress asks once more if the replica dies before the client has had anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import ray
from prometheus_client import Metric, generate_latest
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RequestRouter

from .answer import ReplicaDied
from .engine_client import Choices, EngineClient, Generation
from .link import Address, Outbox, Piece, listen
from .messages import Ready
from .protocol import ApiError
from .routes import Routes
from .run import DrainingServer, listening_socket

NAME = "rosecourse"
LATE = 10.0  # seconds after the end of a request in which its last tokens must have come


class Replica(EngineClient):
    """An engine process; ingresses call some methods through Serve. Ray replaces one whose engine has died."""

    async def __init__(self, work: Callable[[Connection], None], max_waiting: int) -> None:  # type: ignore[misc]
        super().__init__(work, max_waiting)
        self.outboxes: dict[Address, Outbox] = {}
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

    async def generate(self, asked: Choices, stop: Sequence[str], number: int, address: Address) -> ApiError | None:
        """Send the tokens of a request to the ingress at an address. Returns when all are sent, or an error."""
        if address not in self.outboxes or self.outboxes[address].writer.is_closing():
            self.outboxes[address] = Outbox((await asyncio.open_connection(*address))[1])
        outbox = self.outboxes[address]
        try:
            with self.submit(asked, stop) as generation:
                while deltas := await generation.read():
                    outbox.put((number, *delta) for delta in deltas)
        except ApiError as error:
            return error
        return None


class Ingress:
    """A server over all replicas, which are to it like one `EngineClient`. Connections are divided by the kernel."""

    is_dead = False  # Serve starts other replicas
    refuses: ApiError | None = None  # what new requests get while it drains

    async def __init__(self, handle: Any, host: str, port: int, api_key: str | None, drain_seconds: float) -> None:  # type: ignore[misc]
        self.handle, self.model = handle, await handle.ready.remote()
        self.choices: dict[int, Generation] = {}  # by the number of their request, until it has ended
        self.numbers, self.server = count(), DrainingServer(self, api_key, drain_seconds)
        self.running = asyncio.create_task(self.server.serve([listening_socket(host, port, shared=True)]))

    def check_health(self) -> None:
        """Called by Serve, which replaces an ingress that raises."""
        if self.running.done() and self.refuses is None:
            raise RuntimeError("the server has ended")

    async def drain(self) -> None:
        """Refuse new requests, and return when those that run have ended."""
        self.server.handle_exit(signal.SIGTERM, None)
        await self.running

    @asynccontextmanager
    async def listening(self, app: object) -> AsyncIterator[None]:
        """The lifespan of an application: in it tokens come from replicas."""
        server = await listen(ray.util.get_node_ip_address(), self._take)
        self.address = server.sockets[0].getsockname()[:2]
        yield
        server.close()

    def _take(self, piece: Piece) -> None:
        if piece[0] in self.choices:  # else nobody waits for it any more
            self.choices[piece[0]].put(piece[1:])

    @contextmanager
    def submit(self, asked: Choices, stop: Sequence[str]) -> Iterator[Generation]:
        """As `EngineClient.submit`; a dead replica is `ReplicaDied`."""
        if self.refuses is not None:
            raise self.refuses
        number, generation = next(self.numbers), Generation(len(asked))
        self.choices[number] = generation
        response = self.handle.generate.remote(asked, stop, number, self.address)
        watch = asyncio.create_task(watch_over(generation, response))
        try:
            yield generation
        finally:
            del self.choices[number]
            watch.cancel()
            if generation.num_choices:
                response.cancel()

    def fail_all(self, error: ApiError) -> None:
        for generation in self.choices.values():
            generation.put(error)

    async def metrics(self) -> bytes:
        """Of all replicas that answer."""
        answers = await self.handle.broadcast("families").results_async(return_exceptions=True)
        families: list[Metric] = []
        for family, *others in zip(*(one for one in answers if not isinstance(one, BaseException)), strict=True):
            family.samples += [sample for other in others for sample in other.samples]
            families.append(family)
        return generate_latest(SimpleNamespace(collect=lambda: families))


async def watch_over(generation: Generation, response: Any) -> None:
    """Tell a generation with which error its request has ended. response: of `Replica.generate`."""
    try:
        error = await response
    except RayActorError:
        error = ReplicaDied(500, "the replica has ended", code="replica_dead")
    except RayError as unknown:
        error = ApiError(500, f"the replica cannot answer ({type(unknown).__name__})")
    if error is None:  # its last tokens come after this
        await asyncio.sleep(LATE)
    generation.put(error or ApiError(500, "tokens were lost between replica and server", code="tokens_lost"))


class PrefixRouter(RequestRouter):
    """Asks `Routes` for the replica of a request, by its first prompt. Serve calls these methods in the ingresses."""

    def initialize_state(self) -> None:
        self.routes = ray.get_actor(NAME, NAME)  # one for all of them

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any) -> list[list[Any]]:
        """Replicas, the preferred first."""
        if not pending_request.args:  # it is no generation
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # if none of these takes it
        names = {one.replica_id.unique_id: one for one in candidate_replicas}
        running = {name: self.replica_queue_len_cache.get(one.replica_id) or 0 for name, one in names.items()}
        home = await self.routes.route.remote(pending_request.args[0][0][0], running)
        return [[names.pop(home)], list(names.values())]


@contextmanager
def running_replicas(
    work: Callable[[Connection], None],
    count: tuple[int, int],
    together: int,
    max_waiting: int = 1024,
    address: tuple[str, int] = ("127.0.0.1", 0),
    api_key: str | None = None,
    drain_seconds: float = 30.0,
    health_seconds: float = 10.0,
) -> Iterator[int]:
    """The port on which replicas answer, on the Ray cluster of this process or on a new one, which ends with it.

    count: fewest and most; between them Serve scales so that each has about `together` requests. Where the cluster has
    GPUs, each replica has one. Of ingresses there are as many as fewest replicas, on this node. address: theirs; port 0
    takes a free one.
    """
    with listening_socket(*address) as sock:  # nobody else has the port
        host, port = sock.getsockname()[:2]
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled")
        options = {"name": NAME, "namespace": NAME, "get_if_exists": True, "num_cpus": 0}
        routes = ray.remote(Routes).options(**options, max_restarts=-1, max_task_retries=-1).remote()
        fewest, most = count
        scaling = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": together}
        replicas = serve.deployment(Replica).options(
            **({"num_replicas": fewest} if fewest == most else {"autoscaling_config": scaling}),
            ray_actor_options={"num_cpus": 1, "num_gpus": min(1, ray.cluster_resources().get("GPU", 0))},
            max_ongoing_requests=together + max_waiting,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
            health_check_period_s=health_seconds,
            graceful_shutdown_timeout_s=drain_seconds,
        )
        here = {f"node:{ray.util.get_node_ip_address()}": 0.001}
        ingresses = serve.deployment(Ingress).options(
            num_replicas=fewest, ray_actor_options={"num_cpus": 0, "resources": here}
        )
        served = ingresses.bind(replicas.bind(work, max_waiting), host, port, api_key, drain_seconds)
        handle = serve.run(served, name=NAME, route_prefix=None)
        yield port
        handle.broadcast("drain").results(return_exceptions=True)
        del routes  # it ends with the last that knows it
    finally:
        serve.shutdown()
        ray.shutdown()
