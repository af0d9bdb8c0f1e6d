"""Logits to token ids: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..config import SamplingParams
from ..errors import LogitsError
from .draws import draw


def choose(logits: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """The token that a number in [0, 1) names, by inverse transform sampling. logits: [vocab_size]."""
    logits = logits.float()
    scores = (logits - logits.max()) / params.temperature  # at most 0: a tiny temperature cannot overflow
    scores, token_ids = torch.sort(scores, descending=True, stable=True)
    if params.top_k:
        scores = scores[: params.top_k]
    cumulative = torch.softmax(scores.double(), dim=0).cumsum(dim=0)
    kept = len(cumulative)
    if params.top_p < 1.0:  # the fewest tokens that reach p together; the first always stays
        kept = min(kept, int((cumulative < params.top_p).sum()) + 1)
    limit = uniform * float(cumulative[kept - 1])
    return int(token_ids[min(int((cumulative <= limit).sum()), kept - 1)])


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """The next token of each request. logits: [B, vocab_size]. positions: of the tokens that are chosen.

    Raises `LogitsError` if a row holds NaN or +inf, or nothing but -inf.
    """
    largest, best = logits.max(dim=-1)  # a NaN is larger than any number
    token_ids = best.tolist()  # the device is done by now: no second wait
    if failed := [b for b, logit in enumerate(largest.tolist()) if not -math.inf < logit < math.inf]:
        raise LogitsError(failed)
    if sampled := [b for b, wanted in enumerate(params) if wanted.temperature > 0]:
        for row, b in zip(logits[sampled].cpu(), sampled, strict=True):
            token_ids[b] = choose(row, params[b], draw(params[b].seed, positions[b]))
    return token_ids
