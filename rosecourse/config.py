"""What an engine and a request can be told. Frozen: nothing changes under a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .checks import check_fields, is_count, is_within, shown

PACKAGE = Path(__file__).resolve().parent
# The shipped model and what was recorded: inside an installed package, beside it in a source tree.
DATA = PACKAGE / "data" if (PACKAGE / "data").is_dir() else PACKAGE.parent / "data"


@dataclass(frozen=True)
class EngineConfig:
    """The size of an engine.

    block_size: tokens a KV block holds, a power of two (the articles use 64).
    max_batch_size: most sessions in one decode step.
    max_seq_len: most tokens of one session, prompt and completion; None is the model's context.
    num_blocks: blocks of the KV pool, per layer; None is enough for `max_batch_size` sessions of `max_seq_len` tokens.
    prefix_cache: keep the blocks of finished prompts and share them with prompts that begin alike.
    max_num_batched_tokens: tokens of one step at most, of prompts in chunks and of the sessions that decode beside them
    (lesson 074); None computes each prompt whole, between two decode steps.
    triton_kv_append_min_batch: sessions from which on K and V are appended by a Triton kernel (lesson 061).
    triton_kv_append_full_batch_min_batch: the same for the kernel that takes whole batches; None is the former.
    nvtx: on CUDA, name the stages of a decode step for Nsight Systems (lesson 036).
    """

    block_size: int = 64
    max_batch_size: int = 16
    max_seq_len: int | None = None
    num_blocks: int | None = None
    prefix_cache: bool = True
    max_num_batched_tokens: int | None = None
    triton_kv_append_min_batch: int = 128
    triton_kv_append_full_batch_min_batch: int | None = None
    nvtx: bool = False

    def __post_init__(self) -> None:
        check_fields(
            self,
            block_size=(lambda size: is_count(size) and size & (size - 1) == 0, "a power of two, such as 64"),
            max_batch_size=(is_count, "1 or more"),
            max_seq_len=(lambda n: n is None or is_count(n, 2), "2 or more, or None for the model's context"),
            num_blocks=(lambda n: n is None or is_count(n), "1 or more, or None for as many as the batch needs"),
            prefix_cache=(lambda value: isinstance(value, bool), "True or False"),
            max_num_batched_tokens=(
                lambda n: n is None or is_count(n, self.max_batch_size),
                f"{shown(self.max_batch_size)} (max_batch_size: each session that decodes takes one) or more, or None",
            ),
            triton_kv_append_min_batch=(is_count, "1 or more"),
            triton_kv_append_full_batch_min_batch=(lambda n: n is None or is_count(n), "1 or more"),
            nvtx=(lambda value: isinstance(value, bool), "True or False"),
        )

    @property
    def max_blocks(self) -> int:
        """The blocks, per layer, of a session of `max_seq_len` tokens, which an engine's own configuration states."""
        assert self.max_seq_len is not None, "ask the config of an engine"
        return self.blocks_for(self.max_seq_len)

    def blocks_for(self, num_tokens: int) -> int:
        """The blocks, per layer, that `num_tokens` tokens fill."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen: temperature 0 is greedy, top_k 0 and top_p 1.0 keep every token.

    What a request draws depends on `seed` and the token's position alone, never on the other requests of a batch.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_on_eos: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            max_new_tokens=(is_count, "1 or more"),
            temperature=(lambda value: is_within(value, 0, 100), "0 (greedy) to 100"),
            top_k=(lambda k: is_count(k, 0), "0 (all tokens) or more"),
            top_p=(lambda p: is_within(p, 0, 1) and p > 0, "more than 0 and at most 1"),
            seed=(lambda seed: is_count(seed, 0), "a whole number, 0 or more"),
            stop_on_eos=(lambda value: isinstance(value, bool), "True or False"),
        )
