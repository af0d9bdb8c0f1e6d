"""Fixtures that the tests share."""

import math
import os
from collections import defaultdict

import torch

if not torch.cuda.is_available():  # Triton decides when a kernel is decorated, so this comes before any import of ours
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)  # small operations on a shared machine: threads that wait for each other cost 10x

import pytest
from transformers import GPT2LMHeadModel

from rosecourse import OnlineScheduler, load_model
from rosecourse.models.load import SHIPPED_MODEL, from_transformers
from tests.support.day import BY_DAY, DAY, EVERY, of_the_day, turns_of_the_day
from tests.support.managers import managers
from tests.support.oracles import hf_random_gpt2
from tests.support.scheduling import make_engine


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


EVERY_CASE = bool(os.environ.get("EVERY_CASE"))  # `make adversary`


def pytest_report_header():
    return f"drawn by the number {DAY}: {BY_DAY}={DAY} draws the same tests again, EVERY_CASE=1 all of them"


@pytest.hookimpl(trylast=True)  # after `-k`
def pytest_collection_modifyitems(config, items):
    """Of a test that is marked `drawn(n)` n cases are left, those of the day, and without n a fifth; of those
    marked `long`, a fifth of the tests. Where a GPU runs what is marked `gpu`, it runs all of it."""
    if EVERY_CASE:
        return
    functions = list(dict.fromkeys((item.path, item.originalname) for item in items if item.get_closest_marker("long")))
    turns = turns_of_the_day(functions)
    cases = defaultdict(list)
    left_out = set()
    for item in items:
        function = item.path, getattr(item, "originalname", None)
        drawn = item.get_closest_marker("drawn")
        if item.get_closest_marker("gpu"):
            continue
        if function in functions and function not in turns:
            left_out.add(item)
        elif drawn and (drawn.args or function not in functions):
            cases[*function, *(drawn.args or [None])].append(item)
    for (path, name, n), all_of_them in cases.items():
        count = n or math.ceil(len(all_of_them) / EVERY)
        left_out |= set(all_of_them) - set(of_the_day(all_of_them, count, name, turns.get((path, name), DAY)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
