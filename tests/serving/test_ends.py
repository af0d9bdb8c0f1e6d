"""How a server ends: drained by a signal, or with its engine; and what it asks of whoever starts it."""

import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import openai
import pytest

from rosecourse import ConfigError
from rosecourse.serving.engine_client import EngineClient
from tests.support.commands import ALL
from tests.support.servers import served, until
from tests.support.slow_engine import count_slowly, die_at_once, refuse_to_start


@pytest.fixture(scope="module")
def slow():
    with served(count_slowly, api_key="s3cret") as server:
        yield server


def test_a_wrong_key_is_refused(slow):
    with pytest.raises(openai.AuthenticationError):
        slow.client(key="wrong").models.list()
    assert httpx.get(f"{slow.url}/v1/models").status_code == 401


def test_a_chat_without_a_template_is_refused(slow):
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        slow.client(key="s3cret").chat.completions.create(model="slow", messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_goes_away_stops_its_request(slow, stream):
    """This engine would never end it."""
    asked = {"model": "slow", "prompt": [1, 2, 3], "max_tokens": 10**5, "stream": stream, "n": 2}
    headers = {"Authorization": "Bearer s3cret"}
    stream = httpx.stream("POST", f"{slow.url}/v1/completions", json=asked, headers=headers, timeout=0.5)
    with suppress(httpx.ReadTimeout), stream as answer:
        next(answer.iter_lines())
    until(lambda: not slow.engine.choices and slow.metric("kv_blocks_in_use") == 0)


def test_engine_that_dies_ends_requests_and_says_so(slow):
    client, ids = slow.client(key="s3cret"), [1, 2, 3]
    events = iter(client.completions.create(model="slow", prompt=ids, max_tokens=10**5, stream=True))
    next(events)
    slow.engine.process.kill()
    with pytest.raises(openai.APIError, match="engine process has ended"):
        list(events)
    answer = httpx.get(f"{slow.url}/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
    with pytest.raises(openai.InternalServerError, match="engine process has ended"):
        client.completions.create(model="slow", prompt=ids)
    assert slow.engine.is_dead


@pytest.mark.parametrize(("work", "says"), [(refuse_to_start, "no such model"), (die_at_once, "has ended")])
def test_engine_that_does_not_start_says_why(work, says):
    with pytest.raises(ConfigError, match=says):
        EngineClient(work)


def test_sigterm_finishes_requests_and_refuses_new_ones():
    words = ["serve", "--port", "0", "--threads", "1", "--max-batch-size", "2"]
    process = subprocess.Popen([sys.executable, "-m", "rosecourse", *words], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[-1]
        asked = {"model": "tiny-gpt2", "prompt": "She", "max_tokens": 480, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(url.replace("/v1", "/health")).status_code == 503)
            refused = httpx.post(f"{url}/completions", json=asked)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            *_, last = (line for line in lines if line)
        assert last == "data: [DONE]"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--host 0.0.0.0", "--host 0.0.0.0 can be reached from outside: give --api-key"),
        ("--host example.org", "give --api-key"),
        ("--api-key=", "--api-key is empty"),
        ("--max-replicas 2", "--max-replicas needs --replicas"),
    ],
)
def test_serve_when_it_cannot_says_why_in_one_line(capsys, flags, says):
    assert ALL["serve"].main(flags.split()) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
