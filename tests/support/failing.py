"""Requests that fail: models that make NaN at a position, and cancellations that nobody asked for."""

from rosecourse import OnlineScheduler, SchedulerManager
from rosecourse.models.gpt2 import GPT2


def sick_model(model, position):
    """The model, but NaN in the embedding of a position: whoever has a token there has no next one."""
    positions = model.weights["wpe.weight"].clone()
    positions[position] = float("nan")
    return GPT2(model.shape, model.weights | {"wpe.weight": positions}, model.tokenizer, model.name)


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
