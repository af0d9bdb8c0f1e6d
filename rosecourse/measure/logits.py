"""Whether engines make the same logits, and where they do not, whether only ties are decided otherwise.

All of them take the tokens that the first would take (teacher forcing): after one other token, what follows would say
nothing about the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..config import SamplingParams
from ..engine.engine import InferenceEngine

TIE = 1e-2  # of the largest logit of a row: as far as float16 may be off
INT_OF = {2: torch.int16, 4: torch.int32}  # to compare bits, by the bytes of a number


@dataclass(frozen=True)
class SameLogits:
    """What became of comparing two engines' logits, step by step."""

    steps: int
    rows: int  # of all steps
    numbers: int  # in these rows
    different: int  # of the numbers, by their bits
    apart: float  # the largest difference, as a share of its row's largest logit
    other_choices: int  # rows whose largest logit is another word's
    ties: int  # of these: the words are the two largest of the row, and less than TIE of the largest apart

    @classmethod
    def of(cls, ones: Tensor, others: Tensor) -> SameLogits:
        """Of one step: logits [B, V] of the same rows, finite, of one dtype."""
        bits = INT_OF[ones.element_size()]
        different = int((ones.contiguous().view(bits) != others.contiguous().view(bits)).sum())
        one, other = ones.float(), others.float()
        largest = one.abs().amax(dim=1)
        apart = float(((one - other).abs().amax(dim=1) / largest).max())
        best, second = one.topk(2, dim=1).indices.T
        chosen = other.argmax(dim=1)
        is_other = chosen != best
        lost = (one.gather(1, best[:, None]) - one.gather(1, chosen[:, None]))[:, 0]
        is_tie = is_other & (chosen == second) & (lost <= TIE * largest)
        return cls(1, len(one), one.numel(), different, apart, int(is_other.sum()), int(is_tie.sum()))

    def __add__(self, more: SameLogits) -> SameLogits:
        """Of the steps of both."""
        together = {name: value + getattr(more, name) for name, value in asdict(self).items()}
        return SameLogits(**together | {"apart": max(self.apart, more.apart)})

    def sentence(self, one: str, other: str) -> str:
        """What was found, of two engines of these names."""
        told = f"{one} and {other} over {self.steps} steps, {self.rows:,} rows with the same tokens before them:"
        if self.different == 0:
            return f"{told} all {self.numbers:,} logits are the same, bit for bit."
        told += f" {self.different / self.numbers:.0%} of the logits differ in their bits,"
        told += f" at most by {self.apart:.1%} of the largest of their row."
        if self.other_choices == 0:
            return f"{told} Every row chooses the same token."
        if self.other_choices == self.ties:
            return f"{told} {self.other_choices} rows choose another token, each of them at a tie."
        return f"{told} {self.other_choices} rows choose another token, {self.ties} of them at a tie."


def forced_steps(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[Sequence[int]], steps: int
) -> Iterator[dict[str, Tensor]]:
    """The logits [B, V] of each decode step by every engine, all after the tokens that the first of them takes.

    prompts: of the B sessions, with room for so many steps more. A step's logits are good until the next.
    """
    params = SamplingParams(max_new_tokens=steps + 1, stop_on_eos=False)
    sessions = {name: [engine.new_session(list(p), params) for p in prompts] for name, engine in engines.items()}
    logits = {name: engine.prefill(sessions[name]) for name, engine in engines.items()}
    for _ in range(steps):
        given = next(iter(logits.values())).clone()  # the first one's: others are told, and choose nothing themselves
        for name, engine in engines.items():
            engine.take_tokens(sessions[name], given)
        logits = {name: engine.decode_step_sessions(sessions[name]) for name, engine in engines.items()}
        yield logits
    for name, engine in engines.items():
        for session in sessions[name]:
            engine.free(session)


def compare_logits(
    engines: Mapping[str, InferenceEngine], prompts: Sequence[Sequence[int]], steps: int
) -> dict[tuple[str, str], SameLogits]:
    """Each engine beside the first, and beside the one before it, in steps with the same tokens (`forced_steps`)."""
    names = list(engines)
    pairs = [(one, other) for at, other in enumerate(names) for one in dict.fromkeys((names[0], names[at - 1])) if at]
    found: dict[tuple[str, str], SameLogits] = {}
    for logits in forced_steps(engines, prompts, steps):
        for one, other in pairs:
            made = SameLogits.of(logits[one], logits[other])
            found[one, other] = found[one, other] + made if (one, other) in found else made
    return found


def logits_document(found: Mapping[tuple[str, str], SameLogits]) -> list[dict[str, Any]]:
    """The same for a JSON file."""
    return [{"of": [one, other], **asdict(made)} for (one, other), made in found.items()]
