"""TokenQueue: from the thread that steps to whoever reads a stream."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..kv.guards import bookkeeping


class TokenQueue:
    """A mailbox: items in their order, for one writer and any number of readers, who sleep where there is none.

    An interrupt of a reader that sleeps takes no item. What `SimpleQueue.get` has taken would be lost with it, so the
    items lie beside one: what it holds only wakes.
    """

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Lay an item down; whoever sleeps goes on sleeping."""
        self._items.append(item)

    def wake(self) -> None:
        """Let a reader look, if one sleeps or is about to."""
        self._wakes.put(None)

    def put_back(self, item: Any) -> None:
        """Let an item be the next one again."""
        self._items.appendleft(item)
        self.wake()

    def take(self) -> Any:
        """The next item; waits for it. Call it inside `bookkeeping`: only the waiting can be interrupted."""
        slept = False
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                bookkeeping.interruptible(self._wakes.get)
                slept = True
                continue
            if slept and self._items:  # one wake stands for all that lies here, and others may sleep
                self.wake()
            return item

    def take_all(self) -> list[Any]:
        """All items that are there, one or more; waits for the first. Call it as `take`."""
        items = [self.take()]
        with suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items


class SharedQueue(TokenQueue):
    """The mailbox of one reader of many requests: the tokens of a step lie there as one item (`items.Tokens`)."""
