"""Complete many prompts on a Ray cluster: Ray Data hands them to engines, each an actor that keeps its model.

    pip install 'rosecourse[ray]'
    python examples/ray_batch.py prompts.jsonl answers --engines 2

A line of the input is {"prompt": "..."}. Run it again, and it goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
import ray

import rosecourse as rc

PARAMS = rc.SamplingParams(max_new_tokens=64)


class Completer:
    """An engine; Ray calls it with batches of rows."""

    def __init__(self) -> None:
        self.engine = rc.InferenceEngine(rc.load_model(), rc.EngineConfig(max_batch_size=16))

    def __call__(self, batch: dict) -> dict:
        made = self.engine.generate([str(prompt) for prompt in batch["prompt"]], PARAMS)
        return batch | {"text": [one.text for one in made]}


def key_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()


@click.command(help=__doc__)
@click.argument("prompts", type=click.Path(exists=True, path_type=Path))
@click.argument("answers", type=Path)
@click.option("--engines", default=1)
def main(prompts: Path, answers: Path, engines: int) -> None:
    done = set()
    if any(answers.glob("*.json")):
        done = {key_of(row["prompt"]) for row in ray.data.read_json(str(answers)).iter_rows()}
    rows = ray.data.read_json(str(prompts), lines=True).filter(lambda row: key_of(row["prompt"]) not in done)
    gpus = min(1, ray.cluster_resources().get("GPU", 0))
    rows.map_batches(Completer, batch_size=64, concurrency=engines, num_gpus=gpus).write_json(
        str(answers), mode="append"
    )


if __name__ == "__main__":
    main()
