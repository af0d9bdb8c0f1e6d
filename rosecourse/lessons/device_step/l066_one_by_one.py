"""Part `device_step`, of lessons 066 to 068: a function of tensors that stay where they are."""

from __future__ import annotations

from ...decode.device_step import Outcome
from ...decode.inputs import DecodeInputs
from ...decode.parts import ForwardWithAppend, KVAppendByTable, Rows
from ...decode.sampling import Best, next_tokens


class DeviceStep:
    """Forward with append, the advance of the rows, sampling. The host decides nothing in between."""

    def __init__(self, forward: ForwardWithAppend, kv_append: KVAppendByTable, rows: Rows, best: Best) -> None:
        self.forward, self.kv_append, self.rows, self.best = forward, kv_append, rows, best

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """One more token for each row. sampled: whether any row asks for more than the most probable token."""
        size = len(inputs.token_ids)
        logits = self.forward(inputs, self.kv_append(inputs))
        self.rows.advance(size)
        tokens = next_tokens(logits, self.rows.asked(size) if sampled else None, self.best)
        self.rows.chosen(size, tokens)
        return Outcome(logits, tokens)
