"""Fixtures that the tests share."""

import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():  # Triton decides when a kernel is decorated, so this comes before any import of ours
    os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # small operations on a shared machine: threads that wait for each other cost 10x

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from rosecourse import load_model
from rosecourse.models.load import SHIPPED_MODEL, from_transformers


@pytest.fixture(scope="session")
def model():
    """The shipped model, on the CPU."""
    return load_model(device="cpu")


@pytest.fixture(scope="session")
def hf_model():
    """The shipped model as `transformers` loads it."""
    return GPT2LMHeadModel.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()


def random_gpt2(num_heads: int = 2, head_dim: int = 8, seed: int = 0, context: int = 96) -> GPT2LMHeadModel:
    """A small GPT-2 with seeded random weights, large enough ones for the tokens to depend on the whole context."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=211,
        n_positions=context,
        n_embd=num_heads * head_dim,
        n_layer=3,
        n_head=num_heads,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="session")
def small_pair(model):
    """A small random GPT-2, as `transformers` and as the engine have it."""
    hf = random_gpt2()
    return hf, from_transformers(hf, model.tokenizer, "small")


@pytest.fixture(scope="session")
def small_model(small_pair):
    return small_pair[1]
