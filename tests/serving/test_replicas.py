"""Replicas on a Ray cluster of two nodes: tokens, prefixes and balance are right, and what dies is replaced."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"  # as Ray is imported: no token is written into the home folder
pytest.importorskip("ray.serve", reason="needs the extra `ray`")

import ray
from ray.cluster_utils import Cluster

from rosecourse import SamplingParams
from rosecourse.serving.replicas import running_replicas
from tests.support.servers import engine_of, noting_engine, until

TOKENS = 100
STREAMS = 200
RULES, DOCUMENT, MORE = 32, 64, 8  # tokens


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """A file of what the engines have seen; see `noting_engine`."""
    return tmp_path_factory.mktemp("replicas") / "notes"


@pytest.fixture(scope="module")
def url(notes):
    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False)
        with running_replicas(noting_engine(notes), (2, 2), 64, health_seconds=0.5) as port:
            yield f"http://127.0.0.1:{port}/v1"
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def expected():
    """The engine's text for each prompt."""
    prompts = [prompt_of(number) for number in range(STREAMS)]
    return [one.text for one in engine_of("tiny-gpt2").generate(prompts, SamplingParams(TOKENS, stop_on_eos=False))]


def prompt_of(number):
    return [5, 6, 7 + number]


def replica_of(engine):
    """The process that started an engine's."""
    return int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])


def seen(notes):
    return [json.loads(line) for line in notes.read_text().splitlines()]


def two_engines(url, notes, without=None):
    """The engine processes of two replicas that answer, as soon as there are two. without: one that has died."""
    engines = set()

    async def few(client):
        asked = {"model": "tiny-gpt2", "prompt": [1], "max_tokens": 1}
        await asyncio.gather(*(client.completions.create(**asked) for _ in range(8)))

    def both():
        notes.write_text("")
        with_client(url, few)
        engines.update(note["engine"] for note in seen(notes))
        engines.discard(without)
        return len(engines) == 2

    until(both, seconds=120)  # Ray starts a process in tens of seconds on a busy machine
    notes.write_text("")
    return sorted(engines)


async def numbers_on(engine, notes):
    """Which prompts an engine has begun, when there are some."""
    while not (begun := {note["prompt"][2] - 7 for note in seen(notes) if note["engine"] == engine}):
        await asyncio.sleep(0.005)
    return begun


async def ask(client, number, **options):
    asked = {"model": "tiny-gpt2", "prompt": prompt_of(number), "max_tokens": TOKENS, "temperature": 0}
    return await client.completions.create(**asked, extra_body={"ignore_eos": True}, **options)


async def read_stream(client, number, texts, ended):
    """Its text grows in `texts`. Returns the error with which it ends, or None; `ended` has the time."""
    try:
        async for event in await ask(client, number, stream=True):
            texts[number] += event.choices[0].text
            reason = event.choices[0].finish_reason
        assert reason == "length"  # a stream that breaks off does not look complete
    except openai.APIError as error:
        ended[number] = time.monotonic()
        return error.message


def with_client(url, work):
    async def run():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            return await work(client)

    return asyncio.run(run())


def test_replicas_give_the_engines_tokens(url, expected):
    async def streams(client):
        texts = Counter(dict.fromkeys(range(40), ""))
        await asyncio.gather(*(read_stream(client, number, texts, {}) for number in texts))
        return [texts[number] for number in range(40)]

    assert with_client(url, streams) == expected[:40]
    assert ray.available_resources().get("CPU", 0) == 0  # a replica on each node


def test_killed_replica_ends_begun_streams_and_no_others(url, notes, expected):
    dead, _ = two_engines(url, notes)

    async def around_a_kill(client):
        texts, ended = dict.fromkeys(range(STREAMS), ""), {}
        streams = [asyncio.create_task(read_stream(client, number, texts, ended)) for number in texts]
        while sum(bool(texts[number]) for number in await numbers_on(dead, notes)) < 20:
            await asyncio.sleep(0.005)
        os.kill(replica_of(dead), signal.SIGKILL)
        killed = time.monotonic()
        errors = await asyncio.gather(*streams)
        return texts, errors, max(ended.values()) - killed, await numbers_on(dead, notes)

    texts, errors, seconds, begun = with_client(url, around_a_kill)
    lost = {number for number in texts if errors[number] is not None}
    print(f"{len(lost)} of {STREAMS} streams lost, the last {seconds:.1f} s after the kill")
    assert {errors[number] for number in lost} == {"the replica has ended"}
    assert all(texts[number] and expected[number].startswith(texts[number]) for number in lost)
    assert seconds < 10
    assert lost <= begun
    assert [number for number in texts if number not in lost and texts[number] != expected[number]] == []
    two_engines(url, notes, without=dead)


def test_dead_engine_costs_no_whole_answer(url, notes, expected):
    dead, other = two_engines(url, notes)

    async def around_a_kill(client):
        answers = [asyncio.create_task(ask(client, number)) for number in range(100)]
        begun = await numbers_on(dead, notes)
        os.kill(dead, signal.SIGKILL)
        texts = [(await answer).choices[0].text for answer in answers]
        return texts, begun & await numbers_on(other, notes)

    texts, again = with_client(url, around_a_kill)
    assert texts == expected[:100]
    assert again  # they began twice
    two_engines(url, notes, without=dead)


def test_client_that_goes_away_frees_its_blocks(url, notes):
    engines = two_engines(url, notes)

    def gauges(name):
        """Of each replica."""
        lines = httpx.get(url.replace("v1", "metrics")).text.splitlines()
        found = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(f"rosecourse_{name}{{")}
        assert len(found) == sum(line.startswith(f"rosecourse_{name}") for line in lines) == 2
        return list(found.values())

    async def leave(client):
        streams = [await ask(client, number, stream=True) for number in range(8)]
        for engine in engines:
            os.kill(engine, signal.SIGSTOP)  # so none comes to its end
        assert any(gauges("requests_running"))
        await asyncio.gather(*(stream.close() for stream in streams))

    try:
        with_client(url, leave)
        until(lambda: gauges("requests_running") == [0, 0])
    finally:
        for engine in engines:
            os.kill(engine, signal.SIGCONT)
    until(lambda: gauges("kv_blocks_in_use") == [0, 0])


async def talk(client, rules, dice):
    """A session: requests about one document, each with what came before."""
    prompt = rules + dice.choices(range(1, 1000), k=DOCUMENT)
    for _ in range(dice.choice([2, 3, 4, 8])):
        prompt = prompt + dice.choices(range(1, 1000), k=MORE)
        await client.completions.create(model="tiny-gpt2", prompt=prompt, max_tokens=2)


def test_prefixes_are_found_and_load_is_even(url, notes):
    async def traffic(client):
        dice, open_sessions = random.Random(0), asyncio.Semaphore(16)
        rules = dice.choices(range(1, 1000), k=RULES)

        async def one(number):
            async with open_sessions:
                await talk(client, rules, random.Random(number))

        await asyncio.gather(*(one(number) for number in range(120)))

    two_engines(url, notes)
    with_client(url, traffic)
    asked = seen(notes)
    single, found = engine_of("tiny-gpt2"), 0
    for note in asked:
        session = single.new_session(note["prompt"])
        single.reserve(session)
        found += session.num_cached_tokens
        single.prefix_cache.insert(note["prompt"], session.table)
        single.free(session)
    hits = sum(note["found"] for note in asked) / found
    counts = [Counter(note["engine"] for note in asked[i : i + 100]) for i in range(0, len(asked) - 99, 100)]
    most = max(max(count.values()) for count in counts)
    print(f"{len(asked)} prompts: {hits:.3f} of one engine's hits, at most {most} of 100 on a replica")
    assert hits >= 0.9
    assert most <= 55
