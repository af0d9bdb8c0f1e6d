"""Requests that a scheduler serves, in a story that two engines live through, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config import SamplingParams
from ...engine.core import EngineCore
from ...engine.scheduler import OnlineScheduler
from ...request.session import InferenceSession
from .interrupts import Interrupt
from .tags import letter

MOST_STEPS = 400  # no story takes more


class DeviceFailed(RuntimeError):
    """What a device says that can do nothing any more."""


class NeverEnds(Exception):
    """A scheduler still has work after more steps than any story takes."""


class Server:
    """One engine and its scheduler. sessions: all that were submitted, by their names, forks and samples included.

    log: of the engine whose pipeline is the learner's; None for the right engine, on which nothing fails.
    """

    def __init__(self, engine: EngineCore, log: Any = None) -> None:
        self.engine, self.log = engine, log
        self.scheduler = OnlineScheduler(engine)
        self.sessions: dict[str, InferenceSession] = {}

    def submit(self, length: int, new_tokens: int, samples: int = 1, prompt: Sequence[int] = (), **asked: Any) -> str:
        """A request; returns its name. asked: of its `SamplingParams`, which are greedy and without an end of text."""
        number = len(self.sessions)
        words = [*prompt, *((7 * number + 3 * n) % 90 for n in range(length - len(prompt)))]
        params = SamplingParams(**{"max_new_tokens": new_tokens, "stop_on_eos": False, "seed": number, **asked})
        session = self.engine.new_session(words, params)
        self.scheduler.submit(session, (params,) * (samples - 1))
        return self._named(session)

    def step(self, number: int = 1) -> None:
        """So many steps of the scheduler. What was to fail in one of them has failed when it is over."""
        for _ in range(number):
            try:
                self.scheduler.step()
            except (Interrupt, DeviceFailed):
                if self.log is not None:
                    self.log.device.revive()
            self._name_samples()

    def run(self) -> None:
        """Step until nothing is left to do. Raises `NeverEnds`."""
        for _ in range(MOST_STEPS):
            if not self.scheduler.has_work:
                self.scheduler.audit()
                return
            self.step()
        raise NeverEnds

    def cancel(self, name: str) -> None:
        self.scheduler.cancel(self.sessions[name])

    def fork(self, name: str, word: int) -> str:
        """A fork that goes on with another word; returns its name."""
        child = self.engine.fork(self.sessions[name])
        child.token_ids[-1] = word
        self.scheduler.submit(child)
        return self._named(child)

    # -- what fails, where the pipeline is the learner's ----------------------------------------------------------------

    def interrupt_wait(self) -> None:
        """Somebody presses Ctrl-C while the host waits next."""
        if self.log is not None:
            self.log.device.failure = Interrupt()

    def fail_launch(self) -> None:
        """The next step cannot be launched."""
        if self.log is not None:
            self.log.failure = DeviceFailed("the step could not be launched")

    def fail_device(self) -> None:
        """From the next wait on the device does nothing any more, until the step has ended."""
        if self.log is not None:
            self.log.device.dead = DeviceFailed("the device has failed")

    def _named(self, session: InferenceSession) -> str:
        name = letter(len(self.sessions))
        self.sessions[name] = session
        if self.log is not None:
            self.log.name(session, name)
        return name

    def _name_samples(self) -> None:
        for session in list(self.sessions.values()):
            for sample in session.forks:
                if sample not in self.sessions.values():
                    self._named(sample)
