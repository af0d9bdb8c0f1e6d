"""What an engine and a request can be told. Frozen: nothing changes under a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .checks import is_count, is_within, make_plain, require, shown
from .errors import ConfigError

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
    triton_kv_append_min_batch: sessions from which on K and V are appended by a Triton kernel (lesson 061).
    triton_kv_append_full_batch_min_batch: the same for the kernel that takes whole batches; None is the former.
    nvtx: on CUDA, name the stages of a decode step for Nsight Systems (lesson 036).
    """

    block_size: int = 64
    max_batch_size: int = 16
    max_seq_len: int | None = None
    num_blocks: int | None = None
    prefix_cache: bool = True
    triton_kv_append_min_batch: int = 128
    triton_kv_append_full_batch_min_batch: int | None = None
    nvtx: bool = False

    def __post_init__(self) -> None:
        size = self.block_size
        require(
            is_count(size) and size & (size - 1) == 0, f"block_size is {shown(size)}: give a power of two, such as 64"
        )
        require(is_count(self.max_batch_size), f"max_batch_size is {shown(self.max_batch_size)}: give 1 or more")
        require(
            self.max_seq_len is None or is_count(self.max_seq_len, 2),
            f"max_seq_len is {shown(self.max_seq_len)}: give 2 or more, or None for the model's context",
        )
        require(
            self.num_blocks is None or is_count(self.num_blocks),
            f"num_blocks is {shown(self.num_blocks)}: give 1 or more, or None for as many as the batch needs",
        )
        for name in ("triton_kv_append_min_batch", "triton_kv_append_full_batch_min_batch"):
            value = getattr(self, name)
            require(is_count(value) or (value is None and "full" in name), f"{name} is {shown(value)}: give 1 or more")
        for name in ("prefix_cache", "nvtx"):
            value = getattr(self, name)
            require(isinstance(value, bool), f"{name} is {shown(value)}: give True or False")
        make_plain(self)

    @property
    def max_blocks(self) -> int:
        """The blocks, per layer, of a session of `max_seq_len` tokens, which an engine's own configuration states."""
        if self.max_seq_len is None:
            raise ConfigError("max_seq_len is None: give a number, or ask the config of an engine")
        return self.blocks_for(self.max_seq_len)

    def blocks_for(self, num_tokens: int) -> int:
        """The blocks, per layer, that `num_tokens` tokens fill."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    temperature 0 is greedy. top_k 0 and top_p 1.0 keep every token. What a request draws for a token depends on
    `seed` and the token's position alone, never on the other requests of a batch.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_on_eos: bool = True

    def __post_init__(self) -> None:
        require(is_count(self.max_new_tokens), f"max_new_tokens is {shown(self.max_new_tokens)}: give 1 or more")
        require(
            is_within(self.temperature, 0, 100), f"temperature is {shown(self.temperature)}: give 0 (greedy) to 100"
        )
        require(is_count(self.top_k, 0), f"top_k is {shown(self.top_k)}: give 0 (all tokens) or more")
        require(
            is_within(self.top_p, 0, 1) and self.top_p > 0,
            f"top_p is {shown(self.top_p)}: give more than 0 and at most 1",
        )
        require(is_count(self.seed, 0), f"seed is {shown(self.seed)}: give a whole number, 0 or more")
        require(isinstance(self.stop_on_eos, bool), f"stop_on_eos is {shown(self.stop_on_eos)}: give True or False")
        make_plain(self)
