"""Part `fill`: how many tokens of each prompt a step computes, under a budget of tokens.

(Chunks of prompts beside sessions that decode are Sarathi-Serve's idea, OSDI 2024, https://arxiv.org/abs/2403.02310.
vLLM's scheduler has the same budget, `max_num_batched_tokens`.)
"""

from __future__ import annotations

from collections.abc import Sequence


class FillStep:
    """Who decodes has its token first; the oldest prompt takes what is left of the budget, then the next one."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens a step

    def __call__(self, num_decoding: int, prompts: Sequence[int]) -> list[int]:
        """Tokens of each prompt to compute in a step beside `num_decoding` sessions of one token each.

        prompts: tokens that each has left, the oldest first, one or more.
        """
        left = self.budget - num_decoding
        sizes = []
        for tokens in prompts:
            sizes.append(min(tokens, left))
            left -= sizes[-1]
        return sizes
