"""The server's answers, as OpenAI's own client reads them: the engine's tokens, and its errors."""

import json
from contextlib import contextmanager
from itertools import count

import httpx
import openai
import pytest

from rosecourse import SamplingParams
from rosecourse.serving.answer import ReplicaDied
from rosecourse.serving.messages import Cancel

PROMPT = "My dear sister,"


@pytest.fixture
def client(server):
    return server.client()


def texts_of(events):
    """The text of each choice, and why it ended."""
    texts, reasons = {}, {}
    for event in events:
        for choice in event.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason
    return [texts[n] for n in sorted(texts)], [reasons[n] for n in sorted(reasons)]


@pytest.mark.parametrize(
    "chosen",
    [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}, {"seed": 3, "extra_body": {"top_k": 5}}],
    ids=["greedy", "top_p", "top_k"],
)
@pytest.mark.parametrize("n", [1, 3])
def test_completions_are_those_of_the_engine(client, server, engine, chosen, n):
    plain = {"temperature": 1.0} | chosen | chosen.get("extra_body", {})
    params = SamplingParams(20, **{name: value for name, value in plain.items() if name != "extra_body"})
    expected = [one.text for one in engine.generate([PROMPT, "She"], params, n)]
    asked = {"model": server.model, "prompt": [PROMPT, "She"], "max_tokens": 20, "n": n, **chosen}
    whole = client.completions.create(**asked)
    assert [choice.text for choice in whole.choices] == expected
    streamed = client.completions.create(**asked, stream=True)
    assert texts_of(streamed)[0] == expected
    assert whole.usage.completion_tokens == 40 * n


def test_token_ids_are_a_prompt_and_usage_counts_them(client, server, engine):
    ids = engine.tokenize(PROMPT)
    asked = {"model": server.model, "prompt": ids, "max_tokens": 5, "temperature": 0}
    usage = client.completions.create(**asked).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(ids), 5, len(ids) + 5)
    *events, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert last.usage == usage
    assert last.choices == []
    assert all(event.usage is None for event in events)
    assert texts_of(events)[1] == ["length"]


def test_stop_strings_end_a_text_across_token_borders(client, server, engine, monkeypatch):
    sent, send = [], server.engine.send
    monkeypatch.setattr(server.engine, "send", lambda command: (sent.append(command), send(command)))
    whole = engine.generate(PROMPT, SamplingParams(40))[0].text
    stop = whole[11:18]
    asked = {"model": server.model, "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stop": ["zzz", stop]}
    texts, reasons = texts_of(client.completions.create(**asked, stream=True))
    assert texts == [whole[: whole.index(stop)]]
    assert reasons == ["stop"]
    assert Cancel in map(type, sent)  # the engine does not go on
    assert client.completions.create(**asked).choices[0].text == texts[0]
    server.settle()


def test_chat_takes_the_models_template(client, server, engine):
    text = f"{engine.model.tokenizer.bos_token}user: Who are you?\nassistant:"
    expected = engine.generate(text, SamplingParams(12))[0].text
    messages = [{"role": "user", "content": "Who are you?"}]
    asked = {"model": server.model, "messages": messages, "temperature": 0, "max_completion_tokens": 12}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == expected
    events = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(event.choices[0].delta.content for event in events) == expected
    assert events[-1].choices[0].finish_reason == "length"


def test_models_are_listed_and_health_is_well(client, server):
    assert [model.id for model in client.models.list()] == ["chatty"]
    assert httpx.get(f"{server.url}/health").status_code == 200


BAD = [  # fields of a request, and what its answer names: status and field
    ({"prompt": "x", "max_tokens": "many"}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": 5000}, 400, None),
    ({"prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"prompt": "x", "top_p": 0}, 400, "top_p"),
    ({"prompt": "x", "n": 0}, 400, "n"),
    ({"prompt": "x", "n": 10**9}, 400, "n"),
    ({"prompt": ["x"] * 100, "n": 2}, 400, "n"),
    ({"prompt": "x", "stop": [""]}, 400, "stop[0]"),
    ({"prompt": "x", "stop": list("abcde")}, 400, "stop"),
    ({"prompt": "x", "seed": 1.5}, 400, "seed"),
    ({"prompt": "x", "tools": [{"type": "function"}]}, 400, "tools"),
    ({"prompt": "x", "no_such_field": 1}, 400, "no_such_field"),
    ({"prompt": ""}, 400, None),
    ({"prompt": []}, 400, None),
    ({"prompt": [10**30]}, 400, None),
    ({"prompt": [-1]}, 400, None),
    ({"prompt": [1, "x"]}, 400, None),
    ({"prompt": ["x", 1]}, 400, "prompt"),
    ({"prompt": "disappointment " * 9000}, 400, "prompt"),
    ({}, 400, "prompt"),
    ({"prompt": "x", "model": "another"}, 404, "model"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "param"), BAD, ids=[str(fields)[:40] for fields, *_ in BAD])
def test_bad_requests_get_an_error_that_names_the_field(server, fields, status, param, stream):
    answer = server.post(**fields, stream=stream)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model": "\\ud800"}', b"[" * 100_000])
def test_malformed_bodies_get_an_error(server, body):
    answer = httpx.post(f"{server.url}/v1/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_neutral_fields_change_nothing(server):
    asked = {"prompt": "She", "max_tokens": 4, "temperature": 0}
    neutral = {"logprobs": None, "echo": False, "best_of": 1, "presence_penalty": 0.0, "user": "somebody"}
    first, second = (server.post(**asked, **more).json()["choices"] for more in ({}, neutral))
    assert first == second


def test_large_bodies_are_refused_before_they_are_read(server):
    answer = httpx.post(f"{server.url}/v1/completions", content=b" " * (5 * 2**20))
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
def test_unknown_paths_get_openais_shape(server, method, path, status):
    answer = httpx.request(method, server.url + path)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_histograms_count_first_and_later_tokens(server):
    before = [server.metric(f"{name}_seconds_count") for name in ("ttft", "itl")]
    server.post(prompt="She", max_tokens=6, stream=True)
    after = [server.metric(f"{name}_seconds_count") for name in ("ttft", "itl")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 5]


def test_refused_requests_raise_openais_exceptions(client, server):
    with pytest.raises(openai.BadRequestError, match="max_tokens is 9999"):
        client.completions.create(model=server.model, prompt="x", max_tokens=9999)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")


def test_events_are_json_and_end_with_done(server):
    lines = server.post(prompt="She", max_tokens=3, stream=True).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert [json.loads(line.removeprefix("data: "))["object"] for line in lines[:-2]] == ["text_completion"] * 3


@pytest.mark.parametrize(
    ("stream", "deaths", "ends"),
    [
        (False, [1], '"total_tokens":5}}'),
        (True, [0], "data: [DONE]\n\n"),
        (True, [0, 0], '"code":"replica_dead"}}'),
        (True, [1], '"code":"replica_dead"}}\n\n'),
    ],
)
def test_request_of_a_dead_replica_is_asked_once_more(server, monkeypatch, stream, deaths, ends):
    """Unless its client has had something. deaths: which read of each attempt fails; test_replicas.py has real ones."""
    submit = server.engine.submit

    @contextmanager
    def dying(asked, stop):
        with submit(asked, stop) as generation:
            read, reads, last = generation.read, count(), deaths.pop() if deaths else None

            async def read_or_die():
                if next(reads) == last:
                    raise ReplicaDied(500, "the replica has ended", code="replica_dead")
                return await read()

            generation.read = read_or_die
            yield generation

    monkeypatch.setattr(server.engine, "submit", dying)
    assert server.post(prompt=[5, 6], max_tokens=3, ignore_eos=True, stream=stream).text.endswith(ends)
    assert not deaths
