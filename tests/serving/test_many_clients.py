"""Many clients at once, and clients that do harm: no wrong token, no block lost, no memory kept."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from rosecourse import SamplingParams
from tests.support.servers import until

COUNTS, TOKENS = (200, 80), 16  # of two waves of requests, the second for what the first may have left


def prompt_of(number):
    return ("It is a truth", "She", "My dear sister, I", "The evening")[number % 4] + " very" * (number % 7)


async def ask(client, model, number):
    """The text of a request, or what came of it before its client went away, or read slowly."""
    asked = {"model": model, "prompt": prompt_of(number), "temperature": 0, "max_tokens": TOKENS, "stream": True}
    text = ""
    async with await client.completions.create(**asked) as events:
        async for event in events:
            text += event.choices[0].text
            if number % 5 == 1:  # goes away
                break
            if number % 20 == 2:
                await asyncio.sleep(0.05)
    return text


def memory_of(pid):
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1e3  # MB


def test_many_clients_get_the_engines_tokens(server, engine):
    async def wave(count):
        async with server.async_client() as client:
            return await asyncio.gather(*(ask(client, server.model, number) for number in range(count)))

    prompts = sorted({prompt_of(number) for number in range(max(COUNTS))})
    expected = {one.prompt: one.text for one in engine.generate(prompts, SamplingParams(TOKENS))}
    memory = []
    for count in COUNTS:
        texts = asyncio.run(wave(count))
        wrong = [n for n, text in enumerate(texts) if n % 5 != 1 and text != expected[prompt_of(n)]]
        assert wrong == []
        assert all(expected[prompt_of(n)].startswith(text) for n, text in enumerate(texts))
        server.settle()
        memory.append(memory_of(server.engine.process.pid))
    assert memory[1] < memory[0] + 20


def request_bytes(body, length=None):
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return (head + body).encode()


def long_request(server, **fields):
    asked = {"model": server.model, "prompt": "She", "max_tokens": 480, "stream": True, "ignore_eos": True}
    return request_bytes(json.dumps(asked | fields))


def half_closed(server):
    sock = server.connect()
    sock.sendall(long_request(server))
    sock.shutdown(socket.SHUT_WR)
    return sock


def gone_at_once(server):
    sock = server.connect()
    sock.sendall(long_request(server, stream=False))
    until(lambda: server.engine.choices)
    sock.close()
    return sock


def slow_headers(server):
    sock = server.connect()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost:")
    return sock


def half_a_body(server):
    sock = server.connect()
    sock.sendall(request_bytes('{"model": ', 1000))
    sock.shutdown(socket.SHUT_WR)
    return sock


def no_http(server):
    sock = server.connect()
    sock.sendall(b"\x16\x03\x01" + bytes(range(256)) * 300)
    return sock


@pytest.mark.parametrize("harm", [half_closed, gone_at_once, slow_headers, half_a_body, no_http])
def test_harmful_clients_take_no_block_and_no_other_turn(server, harm, capfd):
    socks = [harm(server) for _ in range(5)]
    assert server.post(prompt="She", max_tokens=2).status_code == 200
    server.settle()
    for sock in socks:
        sock.close()
    assert "Traceback" not in capfd.readouterr().err


def test_client_that_stops_reading_is_given_up(server):
    """The sockets' buffers hold a part of its stream; the kernel ends the connection."""
    connections = server.server.server_state.connections
    closing = set(connections)  # other tests' clients
    sock = server.connect(SO_RCVBUF=2048)
    sock.sendall(long_request(server, n=128))
    until(lambda: connections - closing)
    until(lambda: not connections - closing)
    server.settle()
    sock.close()


def test_full_queue_gives_429_with_retry_after(server):
    server.engine.max_waiting = 0
    try:
        answer = server.post(prompt="She")
    finally:
        server.engine.max_waiting = 1024
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"
