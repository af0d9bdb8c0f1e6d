"""Servers in a thread of this process, each with an engine process of its own."""

import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import httpx
from openai import AsyncOpenAI, OpenAI

from rosecourse import EngineConfig, InferenceEngine, load_model
from rosecourse.serving.engine_client import EngineClient
from rosecourse.serving.engine_process import run_engine
from rosecourse.serving.run import DrainingServer, listening_socket

CONFIG = EngineConfig(max_batch_size=64, block_size=16, max_seq_len=512)


def engine_of(model):
    """What a server of these tests serves. model: a name or a folder."""
    return InferenceEngine(load_model(model, device="cpu"), CONFIG)


@dataclass
class Served:
    """A server under test."""

    engine: EngineClient
    server: DrainingServer
    port: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self):
        return self.engine.model.name

    def client(self, kind=OpenAI, key="none"):
        return kind(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def async_client(self):
        return self.client(AsyncOpenAI)

    def post(self, path="/v1/completions", **fields):
        return httpx.post(self.url + path, json={"model": self.model, **fields}, timeout=60)

    def connect(self, **options):
        sock = socket.socket()
        for name, value in options.items():
            sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def metric(self, name):
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"rosecourse_{name} "))

    def settle(self):
        """Wait until no request runs, and the engine has said that it holds no block."""
        until(lambda: not self.engine.choices and not self.metric("kv_blocks_in_use"))


def until(condition, seconds=20):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)


def real_engine(model):
    """The work of an engine process. model: a name or a folder."""
    return partial(run_engine, partial(engine_of, str(model)))


def noting_engine(file):
    """A real engine that adds a line of JSON to a file for each prompt: its process, and what its cache has of it."""
    return partial(run_engine, partial(engine_with_notes, str(file)))


def engine_with_notes(file):
    engine = engine_of("tiny-gpt2")
    lookup = engine.prefix_cache.lookup

    def noted(token_ids):
        blocks = lookup(token_ids)
        note = {"engine": os.getpid(), "prompt": token_ids, "found": len(blocks) * CONFIG.block_size}
        with open(file, "a") as notes:
            notes.write(json.dumps(note) + "\n")
        return blocks

    engine.prefix_cache.lookup = noted
    return engine


@contextmanager
def served(work, api_key=None, stall_seconds=30):
    """A server over an engine process that does this work."""
    engine = EngineClient(work)
    sock = listening_socket("127.0.0.1", 0, stall_seconds)
    server = DrainingServer(engine, api_key, drain_seconds=5)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        yield Served(engine, server, sock.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        assert not engine.process.is_alive()
