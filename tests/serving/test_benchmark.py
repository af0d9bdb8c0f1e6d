"""benchmark_serving against our own server, and against what is none."""

import json
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer

import pandas as pd
import pytest

from rosecourse.errors import RequestFailed
from rosecourse.measure.serving import Load, measure_rates
from tests.support.commands import ALL

SMALL = ["--num-requests", "3", "--prompt-tokens", "5", "--max-new-tokens", "4"]
BENCHMARK = ALL["benchmark_serving"].main


def test_benchmark_writes_a_row_for_each_rate(server, tmp_path, capsys):
    csv, figure = tmp_path / "rates.csv", tmp_path / "rates.svg"
    flags = ["--base-url", f"{server.url}/v1/", "--rates", "50,200.5", "--csv", str(csv), "--figure", str(figure)]
    assert BENCHMARK([*SMALL, *flags]) == 0
    rows = pd.read_csv(csv)
    assert rows["requests/s"].tolist() == [50, 200.5]
    assert set(rows.model) == {"chatty"}
    assert (rows["TTFT p50"] <= rows["TTFT p99"]).all()
    assert figure.read_text().startswith("<?xml")
    assert "chatty" in capsys.readouterr().out


def test_requests_come_at_their_moments_with_all_their_tokens(server):
    _, times = Load(f"{server.url}/v1", 4, 5, 6).run(rate=20)
    assert [len(one.tokens) for one in times] == [6] * 4
    assert all(one.submitted < one.tokens[0] for one in times)
    submitted = [one.submitted for one in times]
    assert submitted == sorted(submitted)
    assert len(measure_rates(Load(f"{server.url}/v1", 2, 5, 2), [100.0])) == 1


class Joining(BaseHTTPRequestHandler):
    """A server that says how many tokens its events had."""

    def do_GET(self, text='{"data": [{"id": "another"}]}'):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        events, tokens = self.server.answer
        lines = [{"choices": [{"text": "x"}], "usage": None}] * events
        lines.append({"choices": [], "usage": {"completion_tokens": tokens}})
        self.do_GET("".join(f"data: {json.dumps(line)}\n\n" for line in lines))


@pytest.mark.parametrize(("events", "tokens", "found"), [(3, 5, 5), (3, 4, 4), (6, 5, 6)])
def test_an_event_may_have_several_tokens(events, tokens, found):
    with HTTPServer(("127.0.0.1", 0), Joining) as other:
        other.answer = events, tokens
        threading.Thread(target=other.serve_forever, daemon=True).start()
        load = Load(f"http://127.0.0.1:{other.server_port}/v1", 1, 4, 5)
        with nullcontext() if found == 5 else pytest.raises(RequestFailed, match=f"gave {found} tokens of 5"):
            (times,) = load.run(100)[1]
            assert len(times.tokens) == 5
            assert times.tokens[2] == times.tokens[3] == times.tokens[4]
        other.shutdown()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--base-url http://127.0.0.1:1/v1", "does not answer as OpenAI does"),
        ("--base-url {url}", "does not answer as OpenAI does"),
        ("--base-url {url}/v1 --max-new-tokens 1000", "refuses a request (400)"),
        ("--rates 0", "--rates '0'"),
        ("--rates 1,x", "--rates '1,x'"),
    ],
)
def test_benchmark_when_it_cannot_says_why_in_one_line(server, capsys, flags, says):
    assert BENCHMARK([*SMALL, *flags.format(url=server.url).split()]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
