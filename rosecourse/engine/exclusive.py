"""One thread at a time, without waiting: the second one is refused."""

from __future__ import annotations

import threading

from ..errors import EngineBusy


class Exclusive:
    """A context for one thread at a time, which may enter it again inside; another thread gets `EngineBusy`.

    lock: for what is better done late than refused, such as giving back.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise EngineBusy(
                "another thread is using this engine: give each thread its own engine, or let all submit to one "
                "SchedulerManager"
            )

    def __exit__(self, *exc_info: object) -> None:
        self.lock.release()
