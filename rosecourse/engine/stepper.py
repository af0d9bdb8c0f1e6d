"""The thread of a `SchedulerManager`, and the mailboxes that it fills; who reads them is in `engine.streaming`."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple
from weakref import WeakSet, WeakValueDictionary, ref

from ..decode.parts import Mailbox
from ..errors import LogitsError, SchedulerClosed
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession
from .scheduler import NewToken, OnlineScheduler


class NewTokenItem(NamedTuple):
    """A token of a request. finish_reason: of its last token, else None."""

    session: InferenceSession
    token_id: int
    finish_reason: str | None


class End(NamedTuple):
    """Nothing more comes of a request. error: why, if that is not because it is done or cancelled."""

    session: InferenceSession
    error: BaseException | None = None

    def require_well(self) -> None:
        """Raise `LogitsError` for a token that had no numbers, `SchedulerClosed` if the stepping thread has failed."""
        if isinstance(self.error, LogitsError):
            raise LogitsError(self.error.rows) from self.error
        if self.error is not None:
            raise SchedulerClosed(f"the scheduler stopped: {type(self.error).__name__}: {self.error}") from self.error


class Tokens(NamedTuple):
    """Tokens that a step has made for one mailbox, as one item. None is the last one of its request."""

    new_tokens: list[NewToken]


One = NewTokenItem | End
Item = Tokens | One


class TokenQueue:
    """A mailbox: items in their order, for one writer and one reader, who sleeps where there is none.

    An interrupt of a reader that sleeps takes no item: they lie beside a `SimpleQueue`, which only wakes.
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

    def take(self) -> Any:
        """The next item; waits for it. Call it inside `bookkeeping`: only the waiting can be interrupted."""
        while True:
            with suppress(IndexError):
                return self._items.popleft()
            bookkeeping.interruptible(self._wakes.get)

    def take_all(self) -> list[Any]:
        """All items that are there, one or more; waits for the first. Call it as `take`."""
        items = [self.take()]
        with suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items


class LoopMailbox:
    """One mailbox for all streams of an event loop: a wake is one call in the loop's thread, which sorts the items."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._items: deque[Item] = deque()
        # Of the requests that have not ended; each is its stream's, and knows the loop.
        self._queues: WeakValueDictionary[InferenceSession, asyncio.Queue[One]] = WeakValueDictionary()
        self._called = False

    def queue_of(self, session: InferenceSession) -> asyncio.Queue[One]:
        """Where the items of a request come to lie, in the loop's thread."""
        return self._queues.setdefault(session, asyncio.Queue())

    def put(self, item: Item) -> None:
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
            each = [NewTokenItem(*token, None) for token in item.new_tokens] if isinstance(item, Tokens) else [item]
            for one in each:
                if (queue := self._queues.get(one.session)) is not None:
                    queue.put_nowait(one)


class Stepper:
    """A thread that steps a scheduler while there is work. Read and write the attributes under `changed`.

    The engine is the thread's. It knows no manager, so that a manager that nobody holds can go, and ends it.
    """

    def __init__(self, scheduler: OnlineScheduler) -> None:
        """Raises `EngineBusy` where another thread uses the engine, or another manager has it."""
        self.scheduler = scheduler
        self.delivery = scheduler.engine.delivery  # the stepping thread's alone, as `pending` is
        self.pending: list[tuple[Mailbox, Item]] = []  # made by the last step, and not delivered yet
        # Guards what follows. Its lock is reentrant: a garbage collection may call cancel, for a stream that is gone,
        # in a thread that holds it. So cancel only ever appends to a list; nothing here iterates over that one.
        self.changed = threading.Condition()
        self.mailboxes: dict[InferenceSession, Mailbox] = {}  # of the requests that have not ended
        self.new: list[InferenceSession] = []
        self.cancelled: list[InferenceSession] = []
        self.closing = self.drain = False
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="rosecourse-scheduler", daemon=True)
        scheduler.engine.hand_over(self.thread)
        scheduler.manager_thread, scheduler.before_landing = self.thread, self._deliver
        try:
            self.thread.start()
        except BaseException:
            self._hand_back()
            raise
        _steppers.add(self)

    def end(self, drain: bool = False) -> None:
        """Tell the thread to end, without waiting for it. drain: after the requests that it has."""
        with bookkeeping, self.changed:
            self.drain = drain and (self.drain or not self.closing)
            self.closing = True
            self.changed.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
            self.scheduler.engine.settle()
        except BaseException as error:  # whatever it is, the readers must hear of it
            self.failure = error
            self.scheduler.failed.clear()  # they hear of what has ended all
        try:
            self._prepare(self.scheduler.take_new_tokens())
            self._deliver()
        except BaseException as error:
            self.failure = self.failure or error
        with self.changed:
            self.closing = True
        for session in list(self.mailboxes):
            with suppress(Exception):  # after a failure the cache may be broken, too
                self.scheduler.cancel(session)
        self.scheduler.take_new_tokens()  # of a step that failed; who reads them hears of that instead
        self._hand_back()
        for session, mailbox in list(self.mailboxes.items()):  # who hears of the end finds all blocks given back
            with self.changed:
                del self.mailboxes[session]
            mailbox.put(End(session, self.failure))
            mailbox.wake()
        with suppress(Exception):  # it may be what has failed
            self.delivery.flush()

    def _wait_for_work(self) -> bool:
        """Take what the other threads left; sleep while there is nothing to do. False when it is time to end."""
        if not self.scheduler.has_work:
            self.delivery.flush()
        with self.changed:
            while not (self.new or self.cancelled or self.closing or self.scheduler.has_work):
                self.changed.wait()
            new, self.new = self.new, []
            cancelled, self.cancelled = self.cancelled, []
            for session in new:
                self.scheduler.submit(session)  # here, so that whoever holds the lock sees the whole queue
        if cancelled:
            self._deliver()  # who has ended already is not in `mailboxes` then
            for session in dict.fromkeys(cancelled):
                self.scheduler.cancel(session)
                self._prepare_end(session)
            self._deliver()
        return not self.closing or (self.drain and self.scheduler.has_work)

    def _step(self) -> None:
        """One step. What it has made is delivered in the next one, when the device has work and the host waits anyway.

        Readers that wake would take Python's lock from the planning. Where nothing is in flight, it comes at once.
        """
        self._prepare(self.scheduler.step())
        if not self.pending:
            self.delivery.hand_over([])  # whoever still sleeps has its turn
        elif not self.scheduler.runner.pipeline.in_flight:
            self._deliver()

    def _prepare(self, new_tokens: list[NewToken]) -> None:
        """Make items of a step: all tokens for a mailbox are one, or one between ends."""
        self._deliver()  # what the step before has made, if this one has not waited
        # Which token of a request that has ended is its last one.
        last = {s: number for number, (s, _) in enumerate(new_tokens) if s.finish_reason is not None}
        pending, mailboxes = self.pending, self.mailboxes
        together: dict[Mailbox, list[NewToken]] = {}  # the tokens of a mailbox's last item, to which more come
        for number, token in enumerate(new_tokens):
            session, token_id = token
            if (mailbox := mailboxes.get(session)) is None:
                continue
            if last and last.get(session) == number:
                pending.append((mailbox, NewTokenItem(session, token_id, session.finish_reason)))
                pending.append((mailbox, End(session)))
                together.pop(mailbox, None)
            elif (tokens := together.get(mailbox)) is not None:
                tokens.append(token)
            else:
                together[mailbox] = [token]
                pending.append((mailbox, Tokens(together[mailbox])))
        while self.scheduler.failed:
            self._prepare_end(self.scheduler.failed.pop(), LogitsError([0]))

    def _prepare_end(self, session: InferenceSession, error: BaseException | None = None) -> None:
        if (mailbox := self.mailboxes.get(session)) is not None:
            self.pending.append((mailbox, End(session, error)))

    def _deliver(self) -> None:
        """Hand over what is pending. If this fails, the requests whose ends are among it have not been answered."""
        items, self.pending = self.pending, []
        if items:
            self.delivery.hand_over(items)
        for _, item in items:
            if isinstance(item, End):
                with self.changed:
                    self.mailboxes.pop(item.session, None)

    def _hand_back(self) -> None:
        self.scheduler.before_landing = self.scheduler.manager_thread = None
        self.scheduler.engine.guard.hand_back()


_steppers: WeakSet[Stepper] = WeakSet()  # a stepper lives as long as its thread


@atexit.register
def _end_all() -> None:
    """A thread inside torch must not outlive the interpreter."""
    for stepper in list(_steppers):
        stepper.end()
        stepper.thread.join()
