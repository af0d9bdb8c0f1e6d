"""TokenQueue: from the thread that steps to whoever reads a stream."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..kv.bookkeeping import bookkeeping


class TokenQueue:
    """Items in their order, for one writer and any number of readers. An interrupt of a reader that waits takes none.

    What `SimpleQueue.get` has taken would be lost with it, so the items lie beside one: what it holds only wakes.
    """

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._wakes.put(None)

    def put_back(self, item: Any) -> None:
        """Let an item be the next one again."""
        self._items.appendleft(item)
        self._wakes.put(None)

    def take(self) -> Any:
        """The next item; waits for it. Call it inside `bookkeeping`: only the waiting can be interrupted."""
        while True:
            with suppress(IndexError):
                return self._items.popleft()
            bookkeeping.interruptible(self._wakes.get)
