"""A whole engine with a delivery: a thread that steps, and threads that read, as in a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...config import EngineConfig, SamplingParams
from ...decode.parts import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...engine.stepper import End, NewTokenItem, TokenQueue
from ...engine.streaming import SchedulerManager
from ...errors import SchedulerClosed
from ...kv.guards import bookkeeping
from ...request.session import InferenceSession
from .apart import STEP
from .facts import Wrong
from .tiny_gpt2 import attentive_gpt2

PATIENCE = 3.0  # seconds in which something must move: steps and reads take milliseconds
OWN, SHARED, LATE = 14, 4, 2  # requests of readers of their own, of one reader, and of one that comes at the end
CONFIG = EngineConfig(block_size=8, max_batch_size=12, max_seq_len=64, num_blocks=120, prefix_cache=False)


class Reading(threading.Thread):
    """A reader of some requests, in a thread of its own until so many of them have ended."""

    def __init__(self, name: str, requests: int) -> None:
        super().__init__(daemon=True, name=f"reader {name}")
        self.requests = requests
        self.box = TokenQueue()
        self.sessions: list[InferenceSession] = []
        self.items: list[Any] = []
        self.ended = 0

    def run(self) -> None:
        while self.ended < self.requests:
            with bookkeeping:
                new = self.box.take_all()
            self.items += new
            self.ended += sum(isinstance(item, End) for item in new)

    def give_up(self) -> None:
        """End the thread, whatever it waits for."""
        self.ended = self.requests
        self.box.put(None)
        self.box.wake()

    def look(self) -> None:
        """Raises `Wrong` unless each token has been read once and in order, and what has failed in the engine."""
        for session in self.sessions:
            items = [item for item in self.items if item is not None and item.session is session]
            for item in items:
                if isinstance(item, End) and item.error is not None:
                    raise item.error
            found = [item.token_id for item in items if isinstance(item, NewTokenItem)]
            if found != session.completion_ids or not isinstance(items[-1], End):
                end = " and the end" * isinstance(items[-1], End)
                wanted = f"{session.completion_ids} and the end"
                raise Wrong(f"in a whole engine, {self.name} must read {wanted};\nfound: {found}{end}")


class Scene:
    """An engine that serves two bursts of requests with a pause between them, and its readers."""

    def __init__(self, parts: DecodeParts) -> None:
        self.engine = InferenceEngine(attentive_gpt2(1, 2, 8, 160), CONFIG, parts)
        self.readers: list[Reading] = []

    def play(self) -> None:
        """Raises `Wrong` where an item does not come."""
        shared, late = self._reader(2 * SHARED), self._reader(LATE)
        shared.start()
        try:
            with SchedulerManager(OnlineScheduler(self.engine)) as manager, suppress(SchedulerClosed):
                for burst in (1, 2):
                    own = [self._reader(1) for _ in range(OWN)]
                    self._submit(manager, [*own[:7], *[shared] * SHARED, *own[7:], *[late] * LATE * (burst == 1)])
                    for reader in own:
                        reader.start()
                    manager.cancel(own[5].sessions[0])
                    self._wait({shared: burst * SHARED} | dict.fromkeys(own, 1))
                late.start()
                self._wait({late: LATE})
            for reader in self.readers:
                reader.look()
        finally:
            for reader in self.readers:
                reader.give_up()

    def _reader(self, requests: int) -> Reading:
        self.readers.append(Reading(str(len(self.readers) + 1), requests))
        return self.readers[-1]

    def _submit(self, manager: SchedulerManager, readers: list[Reading]) -> None:
        for n, reader in enumerate(readers):
            params = SamplingParams(max_new_tokens=4 + 3 * (n % 4), stop_on_eos=False)
            session = manager.new_session([3 * n + 1] * (1 + n % 7), params)
            reader.sessions.append(session)
            manager.accept(session, reader.box)

    def _wait(self, ends: Mapping[Reading, int]) -> None:
        """Wait until readers have read so many ends."""
        moved, since = -1, time.monotonic()
        while behind := [reader for reader, number in ends.items() if reader.ended < number]:
            time.sleep(0.002)
            sessions = [session for reader in self.readers for session in reader.sessions]
            now = sum(len(reader.items) for reader in self.readers) + sum(len(one.token_ids) for one in sessions)
            if now != moved:
                STEP.begin()
                moved, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                reader, lying = behind[0], len(behind[0].box)
                found = f"{lying} items lie in its mailbox, and it sleeps" if lying else "they never came"
                raise Wrong(f"in a whole engine, {reader.name} must read all items of its requests; found: {found}")


def read_by_threads(parts: DecodeParts, device: str) -> str:
    """What was read, in words. Raises `Wrong`."""
    scene = Scene(parts)
    scene.play()
    requests = sum(reader.requests for reader in scene.readers)
    return (
        f"a whole engine with {len(scene.readers)} threads that read {requests} requests: each token once and in order"
    )
