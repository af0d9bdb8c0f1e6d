"""rosecourse benchmark_serving: an OpenAI-compatible server under load, whoever has written it."""

from __future__ import annotations

import click

from ..checks import require
from .late import figures, pictures_of_servers, serving
from .options import Flags, command, count, file_option


def rates_of(context: click.Context, param: click.Parameter, text: str) -> list[float]:
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = []
    require(bool(rates) and all(0 < rate < 1e6 for rate in rates), f"--rates {text!r}: give numbers such as 1,2,4")
    return rates


@command
@click.option("--base-url", default="http://127.0.0.1:8000/v1", help="Of the server.")
@click.option("--rates", default="1,2,4,8,16", callback=rates_of, help="Requests a second, on the average.")
@click.option("--num-requests", type=count(), default=64, help="At each rate.")
@click.option("--prompt-tokens", type=count(), default=128, help="Length of the random prompts.")
@click.option("--max-new-tokens", type=count(), default=64, help="Completion tokens of a request.")
@click.option("--seed", type=count(0), default=0, help="Of prompts and arrivals.")
@click.option("--api-key", envvar="ROSECOURSE_API_KEY", default="", help="Of the server.")
@file_option("--csv", "Write the table there.")
@file_option("--figure", "Draw it there, a .png or .svg file.")
def benchmark_serving(flags: Flags) -> None:
    """Measure TTFT, TPOT and ITL of a server at several rates.

    Requests arrive at random and are streamed; all have the same lengths.
    """
    drawn = flags.figure is None or flags.figure.suffix in (".png", ".svg")
    require(drawn, f"--figure {flags.figure} is no picture: give a name that ends in .png or .svg")
    lengths = (flags.num_requests, flags.prompt_tokens, flags.max_new_tokens)
    load = serving.Load(flags.base_url.rstrip("/"), *lengths, flags.seed, flags.api_key)
    rows = serving.measure_rates(load, flags.rates)
    print(rows.to_string(index=False))
    if flags.csv is not None:
        rows.to_csv(flags.csv, index=False)
    if flags.figure is not None:
        figure = figures.Figure(figsize=(8.2, 3.0), layout="constrained")
        pictures_of_servers.draw_serving(figure, rows)
        figure.savefig(flags.figure)
