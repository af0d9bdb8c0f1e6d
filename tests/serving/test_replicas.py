"""Replicas on a Ray cluster of two nodes: all requests get their tokens, and who dies is replaced."""

import asyncio
import os
import signal
from contextlib import suppress

import httpx
import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"  # as Ray is imported: no token is written into the home folder
os.environ["RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING"] = "0"  # else one node would answer all, while it has time
pytest.importorskip("ray.serve", reason="needs the extra `ray`")

import ray
import ray.util.state
from openai import AsyncOpenAI
from ray import serve
from ray.cluster_utils import Cluster

from rosecourse.serving.replicas import start_replicas
from tests.support.servers import free_port, until
from tests.support.slow_engine import count_to_the_end

TOKENS = 20


@pytest.fixture(scope="module")
def url():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    port = free_port()
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        http = {"host": "127.0.0.1", "port": port}
        start_replicas(count_to_the_end, (2, 2), 8, http=http, proxies="HeadOnly", health_seconds=0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def engines_seen(url, tries=40):
    """The ids of the engine processes behind the replicas that answer."""
    seen = set()
    for _ in range(tries):
        with suppress(httpx.HTTPError):
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            seen |= {int(float(line.split()[1])) for line in lines if line.startswith("rosecourse_kv_blocks ")}
    return seen


async def ask(client):
    asked = {"model": "slow", "prompt": [1, 2, 3], "max_tokens": TOKENS, "stream": True}
    events = [event async for event in await client.completions.create(**asked)]
    return len(events), events[-1].choices[0].finish_reason


def test_two_nodes_answer_all_requests(url):
    async def all_of_them():
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            return await asyncio.gather(*(ask(client) for _ in range(40)))

    assert asyncio.run(all_of_them()) == [(TOKENS, "length")] * 40
    assert len(engines_seen(url)) == 2
    assert len({actor.node_id for actor in ray.util.state.list_actors() if "ServeReplica" in actor.class_name}) == 2


def test_replica_whose_engine_dies_is_replaced(url):
    before = engines_seen(url)
    dead = min(before)
    os.kill(dead, signal.SIGKILL)
    until(lambda: len(engines_seen(url) - {dead}) == 2, seconds=60)
    answer = httpx.post(f"{url}/v1/completions", json={"model": "slow", "prompt": [1], "max_tokens": 3}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 3
