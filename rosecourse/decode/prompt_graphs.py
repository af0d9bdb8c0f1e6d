"""Prefills of few tokens as CUDA graphs: to launch their operations takes the host longer than the GPU to run them.

A prefill comes in few sizes (`prompt_pads`), and its attention takes prompts of any lengths, so that one graph serves
all that have its number of rows. (vLLM replays graphs for batches of up to 512 tokens, prompts among them.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..config import EngineConfig
from ..kv.pool import KVPool
from .graphs import Graph
from .prompt_pads import LEAST, few_sizes
from .prompt_tokens import PromptTokens, Tokens

MOST = 512  # rows: to launch more takes the host no longer, and the GPU longer to run them


Compute = Callable[[Tokens, Tensor], Tensor]


class TokensInPlace:
    """Prompt tokens in memory that stays where it is: as many rows as a graph has, and as many sequences.

    Sequences that are not there have no rows. The length stands for the longest that there can be. No prefix is cached.
    """

    def __init__(self, kv: KVPool, size: int) -> None:
        numbers = torch.zeros(5, size, dtype=torch.int64, device=kv.device)
        self.token_ids, self.positions, self.last_rows, block, self.slots = numbers.unbind()
        block.fill_(kv.num_blocks)  # of pads, until there are tokens
        self.blocks = block.expand(kv.num_layers, -1)  # [L, size]: a prefill with pads has one table for all layers
        self.tables = self.blocks[..., None]
        self.lengths = [(0, size)]

    def take(self, tokens: PromptTokens) -> None:
        """Copy tokens here, on the device: as many as there are rows."""
        for mine, theirs in zip(self._numbers(self), self._numbers(tokens), strict=True):
            mine.copy_(theirs)
        self.last_rows.fill_(len(self.token_ids) - 1)
        self.last_rows[: len(tokens.last_rows)].copy_(tokens.last_rows)

    @staticmethod
    def _numbers(tokens: Tokens) -> tuple[Tensor, ...]:
        return tokens.token_ids, tokens.positions, tokens.blocks[0], tokens.slots


class PromptGraph:
    """A prefill of so many rows, whatever prompts they are of: one replay."""

    def __init__(self, compute: Compute, kv: KVPool, size: int, graph: Graph) -> None:
        self.tokens, self.graph = TokensInPlace(kv, size), graph

        def run() -> None:  # its outcome is kept: no other graph gets that memory
            self.logits = compute(self.tokens, self.tokens.last_rows)

        graph.warm_up(run)
        graph.capture(run)

    def __call__(self, tokens: PromptTokens, num_sessions: int) -> Tensor:
        """Logits [num_sessions, vocab_size] of the first sequences, for whoever calls to keep."""
        self.tokens.take(tokens)
        self.graph.replay()
        return self.logits[:num_sessions].clone()  # the next replay writes over them


def prompt_graphs(
    compute: Compute, kv: KVPool, config: EngineConfig, new_graph: Callable[[], Graph]
) -> dict[int, PromptGraph]:
    """A graph for each size that prefills of this engine can have, up to `MOST` rows; none where a capture fails.

    compute: `compute(tokens, rows)` are the logits of these rows of the tokens. The largest is captured first: the
    others fit into its memory.
    """
    most = few_sizes(min(MOST, config.max_batch_size * (config.max_seq_len or MOST)))
    graphs: dict[int, PromptGraph] = {}
    try:
        with torch.inference_mode():
            for size in range(most, 0, -LEAST):
                graphs[size] = PromptGraph(compute, kv, size, new_graph())
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        warnings.warn(f"no graph of a prefill of {size} tokens, so they run eagerly: {first_line}", stacklevel=2)
        return {}
    return graphs
