"""The late device of the lab: it does what it is told in order, and not before somebody waits for it."""

import pytest
import torch

from rosecourse.lab.checking.events import POISON, LateDevice, LateEvent, cpu_events_by, events_for


class Told:
    """A late device whose tokens are those of steps 1, 2, 3: step n makes n0, n1, n2."""

    def __init__(self, pace="late"):
        self.device = LateDevice(pace)
        self.live = torch.full((4,), POISON)
        self.tokens = self.device.holds(self.live[:3])

    def step(self, number):
        made = torch.tensor([10 * number, 10 * number + 1, 10 * number + 2])
        self.device.tell_step(lambda: self.live[:3].copy_(made))

    def event(self):
        event = LateEvent(self.device)
        event.record()
        return event


def host():
    return torch.zeros(4, dtype=torch.int64)


def test_nothing_is_done_before_somebody_waits():
    told, first, second = Told(), host(), host()
    events = []
    for number, memory in ((1, first), (2, second)):
        told.step(number)
        memory[:3].copy_(told.tokens, non_blocking=True)
        events.append(told.event())
    assert first.tolist() == second.tolist() == [POISON] * 3 + [0]
    events[0].synchronize()
    assert first.tolist() == [10, 11, 12, 0]
    assert second.tolist() == [POISON] * 3 + [0]
    events[1].synchronize()
    assert second.tolist() == [20, 21, 22, 0]
    assert events[1].query()


def test_by_chance_is_the_same_each_time_and_neither_of_the_two():
    def done():
        told = Told("late by chance")
        seen = []
        for number in range(8):
            told.step(number)
            seen.append(told.device.told - told.device.done)
        return seen

    assert done() == done()
    assert 0 < sum(done()) < sum(range(9))


@pytest.mark.parametrize(
    "read",
    [
        lambda tokens: tokens.tolist(),
        lambda tokens: [int(token) for token in tokens],
        lambda tokens: [token.item() for token in tokens],
        lambda tokens: tokens.cpu().tolist(),
        lambda tokens: tokens.to("cpu").tolist(),
        lambda tokens: (tokens + 0).tolist(),
        lambda tokens: torch.stack([tokens, tokens])[1].tolist(),
        lambda tokens: host()[:3].copy_(tokens).tolist(),
    ],
)
def test_whoever_reads_a_number_waits_for_all_that_was_told(read):
    told = Told()
    told.step(1)
    told.step(2)
    assert read(told.tokens) == [20, 21, 22]
    assert told.device.idle_waits
    assert told.device.done == told.device.told


def test_what_needs_no_number_needs_no_wait():
    told = Told()
    told.step(1)
    tokens = told.tokens
    assert (len(tokens), tokens.shape, tokens.numel(), tokens.dtype) == (3, (3,), 3, torch.int64)
    assert tokens[:2].view(1, 2).size(1) == 2
    assert told.device.idle_waits == told.device.done == 0


def test_copy_on_the_device_keeps_what_a_step_overwrites():
    told, memory = Told(), host()
    told.step(1)
    kept = told.tokens.clone()
    told.step(2)
    memory[:3].copy_(kept, non_blocking=True)
    later = told.tokens.to("cpu", non_blocking=True)
    assert told.device.copies == 2
    assert later.tolist() == [POISON] * 3
    told.event().synchronize()
    assert memory[:3].tolist() == [10, 11, 12]
    assert later.tolist() == [20, 21, 22]
    kept += 1
    kept[0] = 5
    assert kept.tolist() == [5, 12, 13]


def test_events_of_a_device():
    cpu = torch.device("cpu")
    assert events_for(cpu) is torch.cpu.Event
    assert events_for(torch.device("cuda")) is torch.cuda.Event
    with cpu_events_by(dict):
        assert events_for(cpu) is dict
    event = events_for(cpu)()
    event.record()
    assert event.synchronize() is None
    assert event.query()
