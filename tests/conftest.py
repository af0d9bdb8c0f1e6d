"""Fixtures that the tests share."""

import os
from collections import defaultdict

import torch

if not torch.cuda.is_available():  # Triton decides when a kernel is decorated, so this comes before any import of ours
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)  # small operations on a shared machine: threads that wait for each other cost 10x

import pytest
from hypothesis import settings
from transformers import GPT2LMHeadModel

from rosecourse import OnlineScheduler, load_model
from rosecourse.models.load import SHIPPED_MODEL, from_transformers
from tests.support.managers import managers
from tests.support.oracles import hf_random_gpt2
from tests.support.scheduling import make_engine

settings.register_profile("fixed", derandomize=True)  # the same examples in every run
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def model():
    """The shipped model, on the CPU."""
    return load_model(device="cpu")


@pytest.fixture(scope="session")
def hf_model():
    """The shipped model as `transformers` loads it."""
    return GPT2LMHeadModel.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def small_pair(model):
    """A small random GPT-2, as `transformers` and as the engine have it."""
    hf = hf_random_gpt2()
    return hf, from_transformers(hf, model.tokenizer, "small")


@pytest.fixture(scope="session")
def small_model(small_pair):
    return small_pair[1]


@pytest.fixture
def scheduler(small_model):
    """A scheduler over an engine without a prefix cache."""
    return OnlineScheduler(make_engine(small_model, prefix_cache=False))


@pytest.fixture
def manage(scheduler):
    """Makes SchedulerManagers over `scheduler`, which are closed at the end."""
    with managers(scheduler) as make:
        yield make


def pytest_addoption(parser):
    parser.addoption("--every-case", action="store_true", help="all cases of the tests that have many: `make soak`")


@pytest.hookimpl(trylast=True)  # after `-k`
def pytest_collection_modifyitems(config, items):
    """Of a test that is marked `grid` a fixed selection of its cases is left, if `--every-case` is not given and no GPU
    runs them."""
    if config.getoption("--every-case"):
        return
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("grid") and not item.get_closest_marker("gpu") and hasattr(item, "callspec"):
            cases[item.path, item.originalname].append(item)
    left_out = {item for grid in cases.values() for item in grid} - {
        i for grid in cases.values() for i in selected(grid)
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def selected(grid):
    """Cases of one test, chosen by their parameters alone: few that show each value of each axis at least once.

    With `grid(shows=f)` f says what a case shows, as the cause of a fault. With `grid(n)`, for values that are
    interchangeable, n cases are chosen, evenly spaced.
    """
    mark = grid[0].get_closest_marker("grid")
    if mark.args:
        (most,) = mark.args
        return [grid[len(grid) * number // most] for number in range(min(most, len(grid)))]
    shows = mark.kwargs.get("shows", values_of)
    shown = {case: set(shows(**case.callspec.params)) for case in grid}
    missing, chosen = set().union(*shown.values()), []
    while missing:
        chosen.append(max(grid, key=lambda case: len(shown[case] & missing)))
        missing -= shown[chosen[-1]]
    return chosen


def values_of(**params):
    """A value is an object: `callspec.indices` number the cases, and not the values of an axis."""
    return {(axis, id(value)) for axis, value in params.items()}
