"""A benchmark of a model of your own, a folder in the form of Hugging Face: two rungs of the ladder in turns.

    python examples/own_model.py FOLDER [LESSON LESSON]

Without arguments it is the shipped model, with the engine of lesson 035 and the best one. The tokens of both must be
the same, or there are no figures.
"""

import sys

import torch

import rosecourse as rc
from rosecourse.measure.compare import Comparison, compare
from rosecourse.measure.workload import Workload

REQUESTS, TOKENS, PAIRS = 8, 32, 5
PARAMS = rc.SamplingParams(max_new_tokens=TOKENS, stop_on_eos=False)
CONFIG = rc.EngineConfig(max_batch_size=REQUESTS, prefix_cache=False)


def benchmark(folder: str | None, before: str, after: str, pairs: int) -> Comparison:
    """Runs of both engines over the same weights, in turns. folder: None is the shipped model."""
    model = rc.load_model(folder)
    engines = [rc.InferenceEngine(model, CONFIG, rc.lesson(number).after) for number in (before, after)]
    prompts = [f"Chapter {number}." for number in range(REQUESTS)]
    return compare(*engines, Workload.of(prompts, PARAMS), pairs)


def rounded(figure: float) -> str:
    """A figure with three digits or a few more: further ones are chance."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def main(argv: list[str]) -> int:
    torch.set_num_threads(1)  # in a small model threads mostly wait for each other: leave this out for a large one
    folder, before, after = (*argv, *(None, "035", "best")[len(argv) :])[:3]
    try:
        compared = benchmark(folder, before, after, PAIRS)
    except rc.RosecourseError as error:  # a folder without a model, a lesson that is not there
        print(f"own_model.py: {error}", file=sys.stderr)
        return 2
    print(compared.table().to_string(float_format=rounded))
    print(f"\n{compared.verdict(f'{after} against {before}')}\n{compared.provenance}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
