"""The decode step: plan on the host, run on the device, read.

    copies = kv.place(batch.tables)     a block for each session's next slot, copy-on-write
    copy_blocks(copies)
    inputs = plan(batch)                who sits in which row; uploads only what has changed
    runner(inputs)                      forward with append, sampling, advance: eager, or one graph
    read                                the tokens, which are the next step's inputs already

A step that is called is read at once, by `choose`; one that a pipeline runs, when the next one runs. (The loop is that
of nano-vllm and mini-sglang.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd import _profiler_enabled  # it has no public name
from torch.profiler import record_function

from ..config import EngineConfig
from ..errors import LogitsError
from ..kernels import kv_append_by_table, triton_runs_on
from ..kv.blocks import Copy, KVBlockManager
from ..kv.buffers import index_tensor
from ..kv.guards import bookkeeping
from ..models.shape import Model
from ..request.session import InferenceSession
from .inputs import Batch, DecodeInputs
from .parts import Append, DecodeParts
from .runner import Outcome
from .sampling import NO_TOKEN, Best, next_tokens, sampling_metadata

Range = Callable[[str], AbstractContextManager]
NO_RANGE: AbstractContextManager = nullcontext()


def profiler_range(name: str) -> AbstractContextManager:
    """`record_function`, which takes microseconds even where no profiler runs, only where one does."""
    return record_function(name) if _profiler_enabled() else NO_RANGE


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """One that Nsight Systems shows too (article 036)."""
    torch.cuda.nvtx.range_push(name)
    try:
        with record_function(name):
            yield
    finally:
        torch.cuda.nvtx.range_pop()


def range_for(device: torch.device, nvtx: bool) -> Range:
    """How the parts of a decode step name what profilers show."""
    return nvtx_range if nvtx and device.type == "cuda" else profiler_range


class CopyBlocks:
    """One indexed copy of K and one of V, for all sessions and layers of a step.

    No block is the destination of two copies, or the destination of one and the source of another: their order is free.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, copies: Sequence[Copy]) -> None:
        if not copies:
            return
        sources, destinations = index_tensor(list(zip(*copies, strict=True)), self.kv.device)
        for cache in (self.kv.keys, self.kv.values):
            cache[:, destinations] = cache[:, sources]


class KVAppend:
    """Part `kv_append`: a session's next slot is read off its block table, by its position. Any mix of them, one way.

    vLLM's `slot_mapping` and SGLang's `out_cache_loc` name such slots too; here nobody has to write them down.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        # An interpreted kernel is slow: without a GPU it runs from as many sessions on as the engine is told.
        self.min_batch = 1 if kv.device.type == "cuda" else config.triton_kv_append_min_batch

    def __call__(self, inputs: DecodeInputs) -> Append:
        tables, positions = inputs.block_tables[0], inputs.context_lens
        if self.triton and len(positions) >= self.min_batch:
            return lambda layer_idx, k, v: kv_append_by_table(
                self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], k, v, tables, positions
            )
        blocks = tables.gather(1, (positions // self.kv.block_size)[:, None])[:, 0]  # [B], of every layer
        slots = positions % self.kv.block_size

        def append(layer_idx: int, k: torch.Tensor, v: torch.Tensor) -> None:
            self.kv.k_layers[layer_idx][blocks, :, slots] = k
            self.kv.v_layers[layer_idx][blocks, :, slots] = v

        return append


class DecodeStep:
    """Place, copy, plan, run.

    The engine calls it inside `bookkeeping`: only the run, which changes no books, can be interrupted. A block that was
    placed before that stays the session's, and the next step writes into it.
    """

    stages: tuple[str, ...] = ("place", "copy_blocks", "plan", "runner")

    def __init__(self, parts: DecodeParts, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.copy_blocks = parts.build("copy_blocks", model, kv, config)
        self.rows = parts.build("rows", model, kv, config)
        self.runner = parts.build("runner", model, kv, config)
        self.best: Best = self.runner.best
        forward, kv_append = (parts.build(name, model, kv, config) for name in ("forward", "kv_append"))
        self.runner.start(parts.build("device_step", forward, kv_append, self.rows, self.best))
        self.place, self.plan, self.has_read = kv.place, self.rows.plan, self.rows.read
        self.range = range_for(kv.device, config.nvtx)
        self.made: Any = None, 0, None  # of the last step, if it was called: logits, their version, tokens

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """One more token for each session: returns logits [B, vocab_size]."""
        logits, tokens = self.run(Batch.of(sessions))
        with torch.inference_mode(False):  # so that the copy's version tells whether somebody has changed it
            copy = logits.clone()
        self.made = copy, copy._version, tokens
        return copy

    def run(self, batch: Batch) -> Outcome:
        """Tell the device to make one more token for each session; what it makes is there until the next run."""
        with self.range("roseinfer.decode_step_sessions.place"):
            copies: list[Copy] = self.place(batch.tables)
            self.copy_blocks(copies)
        try:
            with self.range("roseinfer.decode_step_sessions.plan"):
                inputs = self.plan(batch)
            with self.range("roseinfer.decode_step_sessions.run"):
                outcome = bookkeeping.interruptible(self.runner, inputs, self.rows.sampling)
        except BaseException:
            self.rows.forget()  # nobody knows how far it came
            raise
        for session, table in zip(batch.sessions, batch.tables, strict=True):
            session.num_cached_tokens += 1
            table.num_tokens += 1
        self.made = None, 0, None
        return outcome

    def choose(self, sessions: Sequence[InferenceSession], logits: torch.Tensor) -> list[int]:
        """The next token of each session, by the logits of its prefill or its decode step."""
        copy, version, tokens = self.made
        is_made = logits is copy and logits._version == version and self.rows.holds(sessions)
        if not is_made:  # by the step itself, or somebody has changed the logits
            tokens = next_tokens(logits, sampling_metadata(sessions, logits.device), self.best)
        token_ids = tokens.tolist()  # waits for the device
        if NO_TOKEN in token_ids:
            raise LogitsError([row for row, token_id in enumerate(token_ids) if token_id == NO_TOKEN])
        if is_made:
            self.rows.tokens = list(token_ids)  # the caller may change theirs
        return token_ids
