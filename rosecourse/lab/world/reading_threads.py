"""A whole engine with the learner's delivery: a thread that steps, and threads that read, as in a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from ...config import EngineConfig, SamplingParams
from ...decode.parts import DecodeParts
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...engine.stepper import End, NewTokenItem, TokenQueue
from ...engine.streaming import SchedulerManager
from ...errors import SchedulerClosed
from ...kv.guards import bookkeeping
from ...models.load import load_model
from ...request.session import InferenceSession
from .causes import Cause
from .delivery_guard import GuardedDelivery
from .delivery_judges import told
from .fault import Fault, PartIsWrong
from .learner import Learner
from .tags import letter

NAME = "a whole engine with threads: a reader for each request, one of several, one that comes late, and a pause"
PATIENCE = 4.0  # seconds in which something must move: steps and reads take milliseconds
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
        self.given_up = False

    def run(self) -> None:
        while self.ended < self.requests and not self.given_up:
            with bookkeeping:
                new = self.box.take_all()
            self.items += new
            self.ended += sum(isinstance(item, End) for item in new)

    def give_up(self) -> None:
        """End the thread, whatever it waits for."""
        self.given_up = True
        self.box.put(None)
        self.box.wake()


class Scene:
    """An engine that serves, and its readers. alive: is called while something moves."""

    def __init__(self, parts: DecodeParts, alive: Callable[[], object]) -> None:
        self.engine, self.alive = InferenceEngine(load_model(device="cpu", dtype="float32"), CONFIG, parts), alive
        self.readers: list[Reading] = []

    def play(self) -> None:
        """Two bursts of requests with a pause between them. Raises `PartIsWrong` where an item does not come."""
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
            self._look()
        finally:
            for reader in self.readers:
                reader.give_up()

    def _reader(self, requests: int) -> Reading:
        self.readers.append(Reading(letter(len(self.readers)), requests))
        return self.readers[-1]

    def _submit(self, manager: SchedulerManager, readers: list[Reading]) -> None:
        for n, reader in enumerate(readers):
            params = SamplingParams(max_new_tokens=9 + 5 * (n % 4), stop_on_eos=False)
            session = manager.new_session([3 * n + 1] * (1 + n % 7), params)
            reader.sessions.append(session)
            manager.accept(session, reader.box)

    def _wait(self, ends: Mapping[Reading, int]) -> None:
        """Wait until readers have read so many ends."""
        moved, since = self._moved(), time.monotonic()
        while behind := [reader for reader, number in ends.items() if reader.ended < number]:
            time.sleep(0.005)
            now = self._moved()
            if now != moved:
                self.alive()
                moved, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                self._stuck(behind[0])

    def _moved(self) -> int:
        sessions = [session for reader in self.readers for session in reader.sessions]
        return sum(len(reader.items) for reader in self.readers) + sum(len(one.token_ids) for one in sessions)

    def _stuck(self, reader: Reading) -> NoReturn:
        self._look_at_delivery()
        lying = len(reader.box)
        if lying:
            what = f"{reader.name} sleeps, and {lying} items lie in its mailbox: nobody wakes it"
            raise PartIsWrong(Fault(what, (f"read:     {told(reader.items)}",), cause=Cause.LEFT_ASLEEP))
        what = f"{reader.name} waits for items that never came into its mailbox"
        raise PartIsWrong(Fault(what, (f"read:     {told(reader.items)}",), cause=Cause.ITEM_LOST))

    def _look(self) -> None:
        """Each reader has each token once, and in order."""
        self._look_at_delivery()
        for reader in self.readers:
            for session in reader.sessions:
                items = [item for item in reader.items if item is not None and item.session is session]
                found = [item.token_id for item in items if isinstance(item, NewTokenItem)]
                if found != session.completion_ids or not isinstance(items[-1], End):
                    details = (f"expected: {session.completion_ids}, and the end", f"found:    {told(items)}")
                    cause = Cause.ITEM_LOST if len(found) < len(session.completion_ids) else Cause.ITEM_TWICE
                    raise PartIsWrong(
                        Fault(f"{reader.name} has read other tokens than were made", details, cause=cause)
                    )

    def _look_at_delivery(self) -> None:
        fault = getattr(self.engine.delivery, "fault", None)
        if isinstance(self.engine.delivery, GuardedDelivery) and fault is not None:
            raise PartIsWrong(fault)


def read_by_threads(learner: Learner, parts_with: Callable[[Any], DecodeParts]) -> str:
    """What was read, in words. Raises `PartIsWrong`.

    It is played once more by the class itself, so that nothing but the engine calls it. parts_with: the parts of an
    engine with a delivery.
    """
    scene = Scene(parts_with(lambda config: GuardedDelivery(learner, config)), learner.alive)
    scene.play()
    requests = sum(reader.requests for reader in scene.readers)
    try:
        Scene(parts_with(learner.part), learner.alive).play()
    except PartIsWrong as wrong:
        what = f"the part does otherwise where none of the checker's functions calls it: {wrong.fault.what}"
        reason = "a part must not look who calls it"
        raise PartIsWrong(Fault(what, wrong.fault.details, reason, cause=Cause.TAMPERING)) from None
    return (
        f"a whole engine with {len(scene.readers)} threads that read {requests} requests: each token once and in order"
    )
