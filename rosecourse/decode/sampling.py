"""What `request.sampling` chooses, where the logits are: for a whole batch, without a wait for the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LogitsError
from ..kv.buffers import index_tensor
from ..request.draws import draws
from ..request.session import InferenceSession
from .rows import SamplingMetadata, sampling_fields

NO_TOKEN = -1  # of a row of NaN or +inf, or of nothing but -inf: there is no distribution to choose from
Best = Callable[[Tensor], Tensor]  # logits [B, vocab_size] to the most probable token of each row [B], or NO_TOKEN


def next_tokens(logits: Tensor, metadata: SamplingMetadata | None, best: Best | None = None) -> Tensor:
    """int64 [B]: the next token of each row, or NO_TOKEN. logits: [B, vocab_size]; metadata: None if all are greedy.

    best: how the most probable tokens are found; None is the fastest way on the device.
    """
    greedy = (best or argmax_on(logits.device))(logits)
    if metadata is None:
        return greedy
    return torch.where((metadata.temperature > 0) & (greedy != NO_TOKEN), _drawn(logits, metadata), greedy)


def tokens_of_each(step: Any, sessions: Sequence[InferenceSession], logits: Tensor) -> list[int]:
    """What a step chooses for each session, or NO_TOKEN where it can choose none."""
    try:
        return step.choose(sessions, logits)
    except LogitsError as error:
        good = [row for row in range(len(sessions)) if row not in set(error.rows)]
    chosen = step.choose([sessions[row] for row in good], logits[good]) if good else []
    token_of = dict(zip(good, chosen, strict=True))
    return [token_of.get(row, NO_TOKEN) for row in range(len(sessions))]


def argmax_on(device: torch.device) -> Best:
    return argmax_by_numpy if device.type == "cpu" else argmax


def argmax(logits: Tensor) -> Tensor:
    """The most probable token of each row; the first of equals."""
    largest, best = logits.max(dim=-1)  # a NaN is larger than any number
    return torch.where(largest.abs() < math.inf, best, NO_TOKEN)


def argmax_by_numpy(logits: Tensor) -> Tensor:
    """The same on a CPU, by NumPy, which looks at several numbers at a time where torch looks at one."""
    rows = logits.float().numpy()
    best = rows.argmax(axis=-1)
    largest = rows[np.arange(len(rows)), best]
    return torch.from_numpy(np.where(np.isfinite(largest), best, NO_TOKEN))


def _drawn(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Inverse transform sampling, as `request.sampling.choose` does it, for each row. int64 [B]."""
    vocab_size = logits.shape[1]
    temperature = torch.where(metadata.temperature > 0, metadata.temperature, 1.0).float()
    logits = logits.float()
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]
    scores, token_ids = torch.sort(scores, dim=-1, descending=True, stable=True)
    top_k = torch.where(metadata.top_k > 0, metadata.top_k, vocab_size).clamp(max=vocab_size)
    rank = torch.arange(vocab_size, device=logits.device)
    scores.masked_fill_(rank >= top_k[:, None], -math.inf)
    cumulative = scores.double().softmax(dim=-1).cumsum(dim=-1)  # [B, vocab_size]
    # The fewest tokens that reach p together; the first always stays.
    nucleus = (cumulative < metadata.top_p[:, None]).sum(dim=-1) + 1
    last = torch.where(metadata.top_p < 1.0, nucleus.minimum(top_k), top_k)[:, None] - 1
    limit = draws(metadata.keys, metadata.positions)[:, None] * cumulative.gather(1, last)
    place = (cumulative <= limit).sum(dim=-1, keepdim=True).minimum(last)
    return token_ids.gather(1, place)[:, 0]


def sampling_metadata(sessions: Sequence[InferenceSession], device: torch.device) -> SamplingMetadata | None:
    """The same as `Rows.view` has, for sessions that have no rows yet, such as those of a prefill."""
    if all(session.params.temperature == 0 for session in sessions):
        return None
    told = [(session.num_cached_tokens, *sampling_fields(session.params)) for session in sessions]
    fields = index_tensor(list(zip(*told, strict=True)), device)
    positions, _, top_k, _, keys = fields
    floats = fields.view(torch.float64)
    return SamplingMetadata(positions, floats[1], top_k, floats[3], keys)
