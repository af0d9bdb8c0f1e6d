"""Fixtures that the tests share."""

import gc
import os
from functools import cache

import torch

if not torch.cuda.is_available():  # Triton decides when a kernel is decorated, so this comes before any import of ours
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)  # small operations on a shared machine: threads that wait for each other cost 10x

import pytest
from hypothesis import settings
from transformers import GPT2LMHeadModel

from rosecourse import OnlineScheduler, load_model
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.models.load import SHIPPED_MODEL
from tests.support.managers import managers
from tests.support.oracles import hf_random_gpt2
from tests.support.scheduling import make_engine
from tests.support.small_models import from_transformers

if TRITON_AVAILABLE:
    from triton.runtime import interpreter

    # It prepares the language for a function whenever a kernel calls it, a third of a test's time. Once is enough.
    prepared = cache(interpreter._patch_lang)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **named: (
        prepared(self.fn) and self.rewrite()(*args, **named)
    )

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


@pytest.fixture(autouse=True)
def _nothing_stays_frozen():
    """A server in this process freezes what is there for the collector: the next test starts without that."""
    yield
    gc.unfreeze()
