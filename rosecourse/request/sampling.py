"""Logits to token ids: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

from ..config import SamplingParams
from ..errors import LogitsError


class Sampler:
    """Chooses the tokens of one request.

    It draws one number per token from a stream of its own, seeded by the request alone, so that the choice does not
    depend on who else is in the batch.
    """

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._random = random.Random(params.seed)

    @property
    def greedy(self) -> bool:
        return self.params.temperature == 0.0

    def choose(self, logits: torch.Tensor) -> int:
        """logits: [vocab_size]. Inverse transform sampling over the tokens, the most probable first."""
        params = self.params
        logits = logits.float()
        scores = (logits - logits.max()) / params.temperature  # at most 0: a tiny temperature cannot overflow
        scores, token_ids = torch.sort(scores, descending=True, stable=True)
        if params.top_k:
            scores = scores[: params.top_k]
        cumulative = torch.softmax(scores.double(), dim=0).cumsum(dim=0)
        kept = len(cumulative)
        if params.top_p < 1.0:  # the fewest tokens that reach p together; the first always stays
            kept = min(kept, int((cumulative < params.top_p).sum()) + 1)
        draw = self._random.random() * float(cumulative[kept - 1])
        return int(token_ids[min(int((cumulative <= draw).sum()), kept - 1)])


def sample(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """The next token of each request; logits: [B, vocab_size]. One wait for the device for all greedy ones.

    Raises `LogitsError` before anything is drawn if a row holds NaN or +inf, or nothing but -inf: there is no
    distribution to choose from.
    """
    largest, best = logits.max(dim=-1)  # a NaN is larger than any number
    token_ids = best.tolist()
    best_logits = largest.tolist()  # the device is done: no wait
    failed = [b for b, logit in enumerate(best_logits) if not -math.inf < logit < math.inf]
    if failed:
        raise LogitsError(failed)
    sampled = [b for b, sampler in enumerate(samplers) if not sampler.greedy]
    if sampled:
        rows = logits[sampled].cpu()
        for row, b in zip(rows, sampled, strict=True):
            token_ids[b] = samplers[b].choose(row)
    return token_ids
