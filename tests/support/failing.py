"""What fails: models that make NaN at a position, cancellations that nobody asked for, calls that raise."""

import torch

from rosecourse import OnlineScheduler, SchedulerManager
from rosecourse.decode.sampling import NO_TOKEN
from rosecourse.models.gpt2 import GPT2


def sick_model(model, position):
    """The model, but NaN in the embedding of a position: whoever has a token there has no next one."""
    positions = model.weights["wpe.weight"].clone()
    positions[position] = float("nan")
    return GPT2(model.shape, model.weights | {"wpe.weight": positions}, model.tokenizer, model.name)


def spoil(engine, is_bad, value=torch.nan):
    """Prefills give the sessions that `is_bad` names logits of `value`, and decode steps choose no token for them."""
    begin, land = engine.runner.begin, engine.pipeline.land

    def spoiled(batch, logits):
        rows = [row for row, session in enumerate(batch.sessions) if is_bad(session)]
        return begin(batch, logits.index_fill(0, torch.tensor(rows, dtype=torch.int64), value))

    def landed():
        step, token_ids = land()
        return step, [NO_TOKEN if is_bad(s) else t for s, t in zip(step.sessions, token_ids, strict=True)]

    engine.runner.begin, engine.pipeline.land = spoiled, landed


def heal(engine):
    """Undo `spoil`."""
    del engine.runner.begin, engine.pipeline.land


def cancels_one(monkeypatch, at):
    """The newest running request is cancelled after step number `at` of the schedulers that are made from now on."""
    managers, steps = {}, []
    make, step = SchedulerManager.__init__, OnlineScheduler.step

    def remembered(self, scheduler, **settings):
        managers[id(scheduler)] = self
        make(self, scheduler, **settings)

    def cancelling(self):
        made = step(self)
        steps.append(self)
        if len(steps) == at:
            managers.get(id(self), self).cancel(list(self.running)[-1])
        return made

    monkeypatch.setattr(SchedulerManager, "__init__", remembered)
    monkeypatch.setattr(OnlineScheduler, "step", cancelling)
    return steps


class Planted(Exception):
    """A fault of ours."""


class FaultAt:
    """The k-th call of what it wraps raises: before the call has done anything, or after it has done all.

    keeps_tokens: whether it has raised and had made tokens, which nobody has got of it.
    """

    def __init__(self, owner, name, k, when):
        self.owner, self.name, self.real = owner, name, getattr(owner, name)
        self.left, self.when = k, when
        setattr(owner, name, self)

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0 and self.when == "before":
            raise Planted(self.name)
        result = self.real(*args, **kwargs)
        if self.left == 0:
            raise Planted(self.name)
        return result

    def __getattr__(self, name):
        return getattr(self.real, name)

    @property
    def keeps_tokens(self):
        return self.left <= 0 and self.when == "after" and self.name in ("begin", "land")

    def remove(self):
        setattr(self.owner, self.name, self.real)
