"""Measure this course's engine beside vLLM and transformers, whichever can be imported, on one machine.

    PYTHONPATH=. python tools/peers/peers.py --out data/peers.csv
    PYTHONPATH=. python tools/peers/peers.py --model llama-1b --out data/models.csv

All read one folder, a model of `rc.random_model`, in 16 bit on a GPU, and get the same token ids: greedy, without a
prefix cache, no request stops early. Each engine has a process of its own, one after the other, and runs every
workload in rounds; lesson 071 runs a second time at the end, as the control. A row is the whole run of one workload,
tokens a second: the median of the rounds, the lowest and the highest; of this course's engine also the share of the
floor that its median step has, in per cent.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pandas as pd

# Prompts and new tokens of each, to completions and, where it is known, the share of the floor.
Run = Callable[[list[list[int]], int], tuple[list[list[int]], float]]
SIZES = {  # of a model: requests, all in one batch, and new tokens of each
    "gpt2": [(64, 512), (16, 512)],
    "smollm2-135m": [(64, 512)],
    "llama-1b": [(1, 256), (64, 256)],
    "llama-8b": [(1, 128), (64, 128)],
}
VOCABULARY = {"smollm2-135m": 49_000}  # where it is smaller than others
PROMPTS = (3, 512)  # tokens
LONGEST = max(PROMPTS) + 512
AGAIN = "rosecourse 071 again"
ENGINES = {
    "rosecourse 071": ("rosecourse", "lesson 071"),
    "rosecourse 061": ("rosecourse", "lesson 061"),
    "vLLM": ("vllm", "LLM.generate, engine core in the same process, CUDA graphs"),
    "transformers static": ("transformers", "generate, static cache, compiled"),
    "transformers dynamic": ("transformers", "generate, dynamic cache"),
    AGAIN: ("rosecourse", "lesson 071, after all others"),
}
QUIET = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
QUIET |= {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_HOST_IP": "127.0.0.1",
}


def workloads(model: str) -> dict[str, tuple[list[list[int]], int]]:
    """Prompts and new tokens by name. The prompts of three tokens are the articles' "Hello", the others are random."""
    draw, found = np.random.default_rng(0), {}
    for requests, new in SIZES[model]:
        for length in PROMPTS:
            prompts = [[40, 571, 79]] * requests
            if length > 3:
                prompts = draw.integers(1, VOCABULARY.get(model, 50_000), (requests, length)).tolist()
            found[f"{requests} x {new}, prompts of {length}"] = (prompts, new)
    return found


def write_model(name: str, folder: Path) -> None:
    """A random model as a folder that every engine reads, in 16 bit on a GPU; its tokenizer is not used."""
    import torch

    import rosecourse as rc
    from rosecourse.measure.rivals import as_transformers

    half = torch.float16 if name == "gpt2" else torch.bfloat16
    model = rc.random_model(name, dtype=half if torch.cuda.is_available() else torch.float32)
    as_transformers(model).save_pretrained(folder)
    for path in (Path(__file__).parents[2] / "data" / "tiny-gpt2").glob("token*.json"):
        shutil.copy(path, folder)


def of_rosecourse(folder: str, number: str) -> Run:
    """The engine after a lesson."""
    import rosecourse as rc
    from rosecourse.measure.floor import bytes_per_run, copy_bandwidth, share_of_floor
    from rosecourse.measure.workload import Workload, run_scheduler

    model = rc.load_model(folder)
    bandwidth = copy_bandwidth(model.device)
    engines: dict[int, rc.InferenceEngine] = {}

    def run(prompts: list[list[int]], new: int) -> tuple[list[list[int]], float]:
        if len(prompts) not in engines:
            config = rc.EngineConfig(max_batch_size=len(prompts), max_seq_len=LONGEST, prefix_cache=False)
            engines[len(prompts)] = rc.InferenceEngine(model, config, rc.lesson(number).after)
        params = rc.SamplingParams(max_new_tokens=new, stop_on_eos=False)
        workload = Workload.of(map(tuple, prompts), params)
        done = run_scheduler(engines[len(prompts)], workload)
        assert done.completions is not None
        gap = float(np.median(np.concatenate([np.diff(times.tokens) for times in done.times])))  # a step's time
        size = bytes_per_run(model, workload, done)
        return done.completions, share_of_floor(size, gap * done.stats.decode_steps, bandwidth)

    return run


def of_transformers(folder: str, static: bool) -> Run:
    """`generate` of transformers, which compiles the forward of a static cache on a GPU by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device)
    asked = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    asked |= {"cache_implementation": "static"} if static else {}

    def run(prompts: list[list[int]], new: int) -> tuple[list[list[int]], float]:
        ids = torch.tensor(prompts, device=device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, **asked)
        return out[:, ids.shape[1] :].tolist(), float("nan")

    return run


def of_vllm(folder: str) -> Run:
    """`LLM.generate` of vLLM."""
    from vllm import LLM, SamplingParams

    largest = max(requests for sizes in SIZES.values() for requests, _ in sizes)
    llm = LLM(
        model=folder,
        dtype="auto",
        max_model_len=LONGEST,
        max_num_seqs=largest,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.5,
        skip_tokenizer_init=True,
        seed=0,
    )

    def run(prompts: list[list[int]], new: int) -> tuple[list[list[int]], float]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=new, detokenize=False)
        done = llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done], float("nan")

    return run


def engine_of(name: str, folder: str) -> Run:
    if name.startswith("rosecourse"):
        return of_rosecourse(folder, name.split()[1])
    return of_vllm(folder) if name == "vLLM" else of_transformers(folder, name.endswith("static"))


def measure(name: str, model: str, folder: str, rounds: int) -> None:
    """Print a line of JSON for each workload: tokens a second of each round, and the first tokens."""
    run = engine_of(name, folder)
    works = workloads(model)
    rates: dict[str, list[float]] = {work: [] for work in works}
    shares: dict[str, list[float]] = {work: [] for work in works}
    heads = {}
    for number in range(rounds + 1):  # the first warms up
        for work in list(works)[:: 1 if number % 2 == 0 else -1]:
            prompts, new = works[work]
            start = time.perf_counter()
            done, share = run(prompts, new)
            seconds = time.perf_counter() - start
            assert [len(one) for one in done] == [new] * len(prompts), f"{name}: tokens are missing"
            heads[work] = done[0][:4]
            if number:
                rates[work].append(len(done) * new / seconds)
                shares[work].append(share)
    for work, found in rates.items():
        told = {
            "workload": work,
            "rates": found,
            "share": float(np.median(shares[work])),
            "head": heads[work],
            "version": import_module(ENGINES[name][0]).__version__,
        }
        print(json.dumps(told), flush=True)


def rows_of(name: str, model: str, folder: Path, rounds: int, path: str) -> list[dict[str, object]]:
    """The rows of an engine, measured in a process of its own; none where that fails. path: of its packages."""
    command = [sys.executable, __file__, "--engine", name, "--model", model]
    command += ["--folder", str(folder), "--rounds", str(rounds)]
    env = os.environ | QUIET | {"PYTHONPATH": path, "VLLM_CACHE_ROOT": str(folder / "cache")}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"workload"')]
    if done.returncode or not lines:
        print(f"{name}: failed with exit code {done.returncode}", file=sys.stderr, flush=True)
        return []
    known = {"model": model, "engine": name, "configuration": ENGINES[name][1]}
    return [
        known
        | {"version": line["version"]}
        | {"workload": line["workload"], "tokens/s": round(float(np.median(line["rates"])))}
        | {"lowest": round(min(line["rates"])), "highest": round(max(line["rates"])), "rounds": rounds}
        | {"share of the floor, %": round(100 * line["share"], 1) if line["share"] == line["share"] else ""}
        | {"first tokens": " ".join(map(str, line["head"]))}
        for line in lines
    ]


@click.command(help=__doc__)
@click.option("--out", type=Path, help="The CSV file to write.")
@click.option("--model", default="gpt2", type=click.Choice(list(SIZES)), help="A shape, with random weights.")
@click.option("--rounds", default=5, help="Runs of each workload, after one that warms up.")
@click.option("--engines", default=",".join(ENGINES), help="Which; those that cannot be imported are left out.")
@click.option("--vllm-path", default="", help="A folder with vLLM's packages, where it is not installed.")
@click.option("--engine", hidden=True)
@click.option("--folder", hidden=True)
def main(
    out: Path, model: str, rounds: int, engines: str, vllm_path: str, engine: str | None, folder: str | None
) -> None:
    if engine is not None and folder is not None:
        measure(engine, model, folder, rounds)
        return
    import torch

    paths = {name: os.environ.get("PYTHONPATH", "") for name in engines.split(",")}
    if vllm_path and "vLLM" in paths:
        paths["vLLM"] = f"{vllm_path}{os.pathsep}{paths['vLLM']}"
    there = [name for name in paths if (name == "vLLM" and vllm_path) or importlib.util.find_spec(ENGINES[name][0])]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    about = {"gpu": device, "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat()}
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as made:
        write_model(model, Path(made))
        for name in there:
            found = rows_of(name, model, Path(made), rounds, paths[name])
            rows += found
            pd.DataFrame([row | about for row in rows]).to_csv(out, index=False)  # as they come: an engine can hang
            told = ", ".join(f"{row['workload']}: {row['tokens/s']:,}" for row in found)
            print(f"{name}: {told} tokens/s", flush=True)


if __name__ == "__main__":
    main()
