"""A pipeline one step behind on a CPU, and a device that is as late as it can be.

`BEHIND` is the best step with a pipeline of two steps on a CPU, which has done all it is told at once. `LATE` has a
`LateDevice` in the CPU's place: what it is told, it does in order, and not before somebody waits for an event. Memory
that it is still to write is poisoned, so that a host that reads early reads nonsense, and each step looks whether the
blocks that it writes to are still those of its sessions. Its prefills wait for all that was told before, and its steps
are those of a pipeline: nobody waits for one of `decode_step_sessions`.
"""

import signal
import threading
from collections import deque

import torch

from rosecourse.decode import BEST
from rosecourse.decode.pipeline import Pipeline
from rosecourse.decode.rows import Rows
from rosecourse.decode.runner import EagerRunner, Outcome
from rosecourse.decode.step import CopyBlocks
from rosecourse.kv.blocks import KVBlockManager

POISON = -(2**40)  # no token, and not `NO_TOKEN` either
MOST_SAMPLES = 256  # of the prompts of one prefill


class Behind(Pipeline):
    """One step behind, also on a CPU."""

    def ahead_on(self, device):
        return 1


BEHIND = BEST.with_(pipeline=Behind)


class LateDevice:
    """One stream of work, done in order and late.

    wrong: what was found to be wrong when work was done. An interrupt of the host does not stop a device: it comes when
    the host has waited.
    """

    def __init__(self):
        self.told, self.done, self.wrong = deque(), 0, []
        self.busy = False

    def do(self, work, *args):
        """Tell it to call work(*args)."""
        self.told.append((work, args))

    @property
    def now(self):
        """How much it was told so far."""
        return self.done + len(self.told)

    def catch_up(self, to=None):
        """Wait until it has done so much, or all. What fails counts as done."""
        if self.busy:
            return
        in_main = threading.current_thread() is threading.main_thread()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if in_main else None
        self.busy = True
        try:
            with torch.inference_mode():
                while self.told and (to is None or self.done < to):
                    work, args = self.told.popleft()
                    self.done += 1
                    work(*args)
        finally:
            self.busy = False
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class LateEvent:
    """As `torch.cuda.Event`."""

    def __init__(self, device):
        self.device, self.at = device, 0

    def record(self):
        self.at = self.device.now

    def synchronize(self):
        self.device.catch_up(self.at)


class LateMemory:
    """Pinned memory, or a part of it, that the device copies to."""

    def __init__(self, device, tensor):
        self.device, self.tensor = device, tensor

    def __getitem__(self, rows):
        return LateMemory(self.device, self.tensor[rows])

    def __len__(self):
        return len(self.tensor)

    def copy_(self, source, non_blocking):
        assert non_blocking, "the host would wait here"
        self.tensor.fill_(POISON)
        self.device.do(self.tensor.copy_, source)

    def tolist(self):
        return self.tensor.tolist()


# -- the parts, over such a device --------------------------------------------------------------------------------


class LateCache(KVBlockManager):
    """The cache; `late` is the device of its engine."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.late = LateDevice()

    def block_indices(self, tables):
        """What a prefill asks for, whose operations come after all that was told before."""
        self.late.catch_up()
        return super().block_indices(tables)


class LateCopies(CopyBlocks):
    def __call__(self, copies):
        self.kv.late.do(super().__call__, list(copies))


class LateRows(Rows):
    """What the host decides it knows at once; the tensors change when the device has come so far."""

    def _clear(self):
        self.kv.late.do(super()._clear)

    def _upload(self, changes):
        self.kv.late.do(super()._upload, dict(changes))

    def _move(self, rows):
        self.kv.late.do(super()._move, rows)

    def _assign_first_tokens(self, numbers, tokens):
        self.kv.late.do(super()._assign_first_tokens, numbers, tokens)


class LateRunner(EagerRunner):
    """As a graph's replay: what it makes comes to lie in the same place, some time after the call."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.kv, size = kv, config.max_batch_size
        self.logits = torch.full((size, model.shape.vocab_size), torch.nan)
        self.tokens = torch.full((size,), POISON)

    def __call__(self, inputs, sampled):
        size = len(inputs.token_ids)
        written = [(s.table, s.table[s.num_cached_tokens // self.kv.block_size]) for s in inputs.sessions]
        self.kv.late.do(self._run, inputs, sampled, written)
        return Outcome(self.logits[:size], self.tokens[:size])

    def _run(self, inputs, sampled, written):
        for table, block in written:
            if table.freed or block not in table or self.kv.info(block).owners != 1:
                self.kv.late.wrong.append(f"a step in flight wrote to block {block}, which was not its session's alone")
        made = self.work(inputs, sampled)
        self.logits[: len(made.logits)], self.tokens[: len(made.tokens)] = made


class LatePipeline(Behind):
    def __init__(self, step, kv, config):
        super().__init__(step, kv, config)
        for slot in self.ring.empty:
            slot.host, slot.copied = (
                LateMemory(kv.late, torch.empty(MOST_SAMPLES, dtype=torch.int64)),
                LateEvent(kv.late),
            )

    def choose(self, batch, logits):
        """The first tokens are chosen late: until then nobody can read them."""
        tokens = super().choose(batch, logits)
        late = torch.full_like(tokens, POISON)
        self.step.rows.kv.late.do(late.copy_, tokens)
        return late


LATE = BEST.with_(
    cache=LateCache,
    copy_blocks=LateCopies,
    rows=LateRows,
    runner=LateRunner,
    pipeline=LatePipeline,
)


def catch_up(engine):
    """Let a late device do all that it was told; nothing for others."""
    if isinstance(engine.kv, LateCache):
        engine.kv.late.catch_up()


def forgive(engine):
    """Let what a failed launch has told a late device be done, in blocks that were given back.

    It comes before whatever is told later on the one stream, so it does no harm.
    """
    catch_up(engine)
    if isinstance(engine.kv, LateCache):
        engine.kv.late.wrong.clear()


def assert_nothing_in_flight(engine):
    """No step is, all slots of the ring are empty, and the device has done nothing wrong."""
    assert engine.num_in_flight == 0
    pipeline = engine.pipeline
    assert len(pipeline.ring.empty) == pipeline.steps_ahead + 1
    assert len(set(map(id, pipeline.ring.empty))) == len(pipeline.ring.empty)
    catch_up(engine)
    assert not getattr(engine.kv, "late", LateDevice()).wrong
