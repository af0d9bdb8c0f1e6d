"""A step that is filled with whole prompts: the budget says when the next prompt begins, and cuts none."""

from __future__ import annotations

from collections.abc import Sequence


class FillStep:
    """A prompt is computed in the step in which it begins, however long it is (Orca's way)."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens a step

    def __call__(self, num_decoding: int, prompts: Sequence[int]) -> list[int]:
        """Tokens of each prompt to compute in a step beside `num_decoding` sessions of one token each.

        prompts: tokens that each has left, the oldest first, one or more.
        """
        return list(prompts)
