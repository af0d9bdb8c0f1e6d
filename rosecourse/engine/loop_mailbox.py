"""LoopMailbox: from the thread that steps to the streams of an event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from contextlib import suppress

from ..request.session import InferenceSession
from .items import End, Item


class LoopMailbox:
    """One mailbox for all streams of an event loop: a wake is one call in the loop's thread, and sorts all that lies
    here. While one is on its way there is no other. It keeps neither the loop nor a stream.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._items: deque[Item] = deque()
        # Of the requests that have not ended; each is its stream's, and knows the loop.
        self._queues: weakref.WeakValueDictionary[InferenceSession, asyncio.Queue[Item]]
        self._queues = weakref.WeakValueDictionary()
        self._called = False

    def queue_of(self, session: InferenceSession) -> asyncio.Queue[Item]:
        """Where the items of a request come to lie, in the loop's thread."""
        return self._queues.setdefault(session, asyncio.Queue())

    def drop(self, session: InferenceSession) -> None:
        """Nobody will read what comes of a request."""
        self._queues.pop(session, None)

    def put(self, item: Item) -> None:
        """Lay an item down; whoever sleeps goes on sleeping."""
        self._items.append(item)

    def wake(self) -> None:
        """Let the loop sort what lies here, if it has not been told yet."""
        loop = self._loop()
        if loop is not None and not self._called:
            self._called = True
            with suppress(RuntimeError):  # a loop that is closed has no readers
                loop.call_soon_threadsafe(self._sort)

    def _sort(self) -> None:
        self._called = False
        while self._items:
            item = self._items.popleft()
            queue = self._queues.get(item.session)
            if queue is not None:
                queue.put_nowait(item)
            if isinstance(item, End):
                self.drop(item.session)
