"""Draw docs/decode_step.png, the picture of the README, from a run on this machine.

python docs/readme_picture.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch

from rosecourse import BASELINE, EngineConfig, InferenceEngine, SamplingParams, load_model
from rosecourse.measure.anatomy import CHUNK, decode_anatomies
from rosecourse.measure.provenance import device_name, package_versions
from rosecourse.measure.workload import Workload, run_scheduler
from rosecourse.pictures.plots import itl_along_steps, step_anatomies

BATCH, TOKENS, STEPS = 16, 200, 100
PARAMS = SamplingParams(max_new_tokens=TOKENS, stop_on_eos=False)


def main() -> None:
    torch.set_num_threads(1)  # at this size more gain little, and measure who else uses the machine
    model = load_model()
    engine = InferenceEngine(model, EngineConfig(max_batch_size=BATCH, prefix_cache=False), BASELINE)
    workload = Workload.of((model.tokenizer.encode("Hello"),) * BATCH, PARAMS)
    runs = [run_scheduler(engine, workload) for _ in range(6)][1:]  # the first warms up
    # The median over runs at each position: noise of the machine goes, what belongs to a position stays.
    itl = np.median([np.diff(run.times[0].tokens) for run in runs], axis=0)

    sessions = [engine.new_session("Hello", PARAMS) for _ in range(BATCH)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    times = decode_anatomies({"035": engine}, {"035": sessions}, turns=STEPS // CHUNK)

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6.2), height_ratios=[1, 2.2], layout="constrained")
    step_anatomies(top, times, f"Lesson 035: where a decode step's time goes ({BATCH} requests)")
    prompt_tokens = len(sessions[0].prompt_ids)
    itl_along_steps(bottom, itl, prompt_tokens, engine.config.block_size, "Inter-token latency along a request")
    versions = package_versions()
    figure.supxlabel(f"measured on {device_name(model.device)}, torch {versions['torch']}", fontsize=8, color="#555555")
    figure.savefig(Path(__file__).with_name("decode_step.png"), dpi=110)


if __name__ == "__main__":
    main()
