"""Part `device_step`: what the device does in a step, as a function of tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..kernels import choose, triton_runs_on
from .inputs import DecodeInputs
from .parts import ForwardWithAppend, KVAppendByTable, Rows
from .sampling import Best, next_tokens


class Outcome(NamedTuple):
    """What a step has made of B rows."""

    logits: Tensor  # [B, vocab_size]
    tokens: Tensor  # int64 [B], the next ones, or `sampling.NO_TOKEN`


def ending_of(forward: Any) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """What ends a greedy step on a GPU, with the arguments of `kernels.choose`."""
    try:
        return forward.model.ops.choose
    except AttributeError:
        return choose


class DeviceStep:
    """Forward with append, the advance of the rows, sampling. The host decides nothing in between.

    On a GPU the end of a greedy step is one kernel, which advances the rows, too; `best` is for other steps then.
    Operations that know more of their logits than the numbers bring a kernel of their own (`five_kernels`).
    """

    def __init__(self, forward: ForwardWithAppend, kv_append: KVAppendByTable, rows: Rows, best: Best) -> None:
        self.forward, self.kv_append, self.rows, self.best = forward, kv_append, rows, best
        self.choose = ending_of(forward)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """One more token for each row. sampled: whether any row asks for more than the most probable token."""
        size = len(inputs.token_ids)
        logits = self.forward(inputs, self.kv_append(inputs))
        if not sampled and logits.is_cuda and triton_runs_on(logits.device):
            view = self.rows.view(size)
            return Outcome(logits, self.choose(logits, view.live, view.inputs.token_ids, view.inputs.context_lens))
        self.rows.advance(size)
        tokens = next_tokens(logits, self.rows.asked(size) if sampled else None, self.best)
        self.rows.chosen(size, tokens)
        return Outcome(logits, tokens)
