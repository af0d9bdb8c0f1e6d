"""The end of a step: the kernel leaves the rows as the operations of lesson 068 do, and ends greedy steps alone."""

import pytest
import torch

from rosecourse import EngineConfig
from rosecourse.decode import runner as best
from rosecourse.decode.rows import LIVE, TEMPERATURE, TOP_K, TOP_P, Rows, bits
from rosecourse.decode.sampling import argmax
from rosecourse.kernels import choose
from rosecourse.kv.blocks import KVBlockManager
from rosecourse.lessons.l066 import DeviceStep as OneByOne
from tests.support.fewer_kernels import OnAGPU

ON_A_GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
INTERPRETED = pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="natively"))
DEVICES = pytest.mark.parametrize("device", [INTERPRETED, ON_A_GPU])
MOST, V = 7, 37
PAIRS = [(best.DeviceStep, OnAGPU), (OneByOne, torch.Tensor)]
INF, NAN = float("inf"), float("nan")


def logits_of(B, device):
    """Rows with a token to choose, and rows of NaN, of +inf and of nothing but -inf among them."""
    logits = torch.randn(B, V, generator=torch.Generator().manual_seed(B)).round()
    for row, number in zip(logits[1::2], (NAN, INF, -INF), strict=False):
        row[5 if number != -INF else slice(None)] = number
    return logits.to(device)


def rows_on(device):
    """Rows with numbers in every column, of which every third is a pad."""
    device = torch.device(device)
    kv = KVBlockManager(
        num_layers=1, num_kv_heads=1, head_dim=8, block_size=4, num_blocks=9, dtype=torch.float32, device=device
    )
    rows = Rows(None, kv, EngineConfig(block_size=4, max_batch_size=MOST, max_seq_len=16, num_blocks=9))
    rows.state.copy_(torch.arange(rows.state.numel()) % 11)
    rows.fields[LIVE] = torch.arange(MOST) % 3 > 0
    rows.fields[TEMPERATURE] = torch.tensor([bits(9.0 * (row % 4 == 0)) for row in range(MOST)])
    rows.fields[TOP_K], rows.fields[TOP_P] = 0, bits(1.0)
    return rows


class Forward:
    """Logits that are there already; notes what it was told and how long the contexts were then."""

    def __init__(self, logits):
        self.logits, self.calls = logits, []

    def __call__(self, inputs, append):
        self.calls.append((append, inputs.context_lens.tolist()))
        return self.logits


def ends(step, device, logits, sampled=False):
    """The tokens of a step, and what is in the rows after it."""
    rows, forward = rows_on(device), Forward(logits)
    inputs = rows.view(len(logits)).inputs
    lens = inputs.context_lens.tolist()
    outcome = step(forward, lambda of: ("append", of), rows, argmax)(inputs, sampled)
    assert forward.calls == [(("append", inputs), lens)]  # the new slots are where they are, and not one further
    assert outcome.logits is logits
    return outcome.tokens.tolist(), rows.state.tolist()


@DEVICES
@pytest.mark.parametrize("B", range(1, MOST + 1))
def test_the_kernel_leaves_the_rows_as_single_operations_do(device, B, monkeypatch):
    calls = []
    monkeypatch.setattr(best, "choose", lambda *args: calls.append(args) or choose(*args))
    logits = logits_of(B, device)
    found, right = ends(best.DeviceStep, device, logits.as_subclass(OnAGPU)), ends(OneByOne, device, logits)
    assert len(calls) == 1
    assert found == right
    assert found[0].count(-1) == min(B // 2, 3)


@DEVICES
def test_a_step_that_samples_does_not_end_with_the_kernel(device, monkeypatch):
    monkeypatch.setattr(best, "choose", None)
    logits = logits_of(MOST, device)
    found, right = (ends(step, device, logits.as_subclass(kind), True) for step, kind in PAIRS)
    assert found == right
    greedy, _ = ends(OneByOne, device, logits)
    assert [row for row in range(MOST) if found[0][row] != greedy[row]] == [0, 4]  # those that sample


def test_nor_does_one_on_a_cpu(monkeypatch):
    """Though the kernel could be interpreted there."""
    monkeypatch.setattr(best, "choose", None)
    logits = logits_of(MOST, "cpu")
    assert ends(best.DeviceStep, "cpu", logits) == ends(OneByOne, "cpu", logits)
