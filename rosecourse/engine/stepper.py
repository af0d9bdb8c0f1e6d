"""The thread of a `SchedulerManager`: it alone steps, and the other threads leave it messages."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from contextlib import suppress
from functools import partial

from ..decode.parts import Mailbox
from ..errors import LogitsError, SchedulerClosed
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession
from .items import End, Item, NewToken, NewTokenItem, Tokens
from .scheduler import OnlineScheduler, nothing
from .token_queue import SharedQueue

Handed = list[tuple[Mailbox, Item | Tokens]]
FORKED = "the thread that steps stayed in the parent process: make a new engine and a new SchedulerManager after a fork"


class Stepper:
    """A thread that steps a scheduler while there is work, and what others have left for it.

    The engine is the thread's from here to its end. The thread knows nothing of the manager, so that a manager that
    nobody holds any more can go, and ends it. Read and write the attributes under `changed`.
    """

    def __init__(self, scheduler: OnlineScheduler) -> None:
        """Raises `EngineBusy` where another thread uses the engine, or another manager has it."""
        self.scheduler = scheduler
        self.delivery = scheduler.engine.delivery  # the stepping thread's alone
        # Guards what follows. Its lock is reentrant: a garbage collection may call cancel, for a stream that is gone,
        # in a thread that holds it. So cancel only ever appends to a list; nothing here iterates over that one.
        self.changed = threading.Condition()
        self.mailboxes: dict[InferenceSession, Mailbox] = {}  # of the requests that have not ended
        self.new: list[InferenceSession] = []
        self.cancelled: list[InferenceSession] = []
        self.closing = False
        self.drain = False
        self.failure: BaseException | None = None
        self.pending: Handed = []  # made by the last step, and not handed over yet
        self.thread = threading.Thread(target=self._run, name="rosecourse-scheduler", daemon=True)
        scheduler.engine.hand_over(self.thread)
        scheduler.manager_thread = self.thread
        scheduler.before_landing = self._hand_over_made
        self.at_exit = partial(_end_and_join, weakref.ref(self), self.thread)
        atexit.register(self.at_exit)  # a thread inside torch must not outlive the interpreter
        _steppers.add(self)
        try:
            self.thread.start()
        except BaseException:
            self.end()
            if not self.thread.is_alive():
                atexit.unregister(self.at_exit)
                self._hand_back()
            raise

    def end(self, drain: bool = False) -> None:
        """Tell the thread to end, without waiting for it. drain: after the requests that it has."""
        with bookkeeping, self.changed:
            self.drain = drain and (self.drain or not self.closing)
            self.closing = True
            self.changed.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self.thread.join()
        atexit.unregister(self.at_exit)

    def end_in_child(self) -> None:
        """In a child process, in which the thread is not: answer whoever waits, and all who come."""
        atexit.unregister(self.at_exit)
        self.changed = threading.Condition()  # the thread may have held the other
        self.closing, self.failure = True, SchedulerClosed(FORKED)
        for session, mailbox in self.mailboxes.items():
            mailbox.put(End(session, self.failure))
            mailbox.wake()
        self.mailboxes = {}

    # -- the stepping thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step()
            self.scheduler.engine.settle()
            self._hand_over_made()
            self._hand_over(self._items_of(self.scheduler.take_new_tokens()))
        except BaseException as error:  # whatever it is, the readers must hear of it
            self.failure = error
            with suppress(Exception):  # it may be what has failed
                self._hand_over_made()
                made = self.scheduler.take_new_tokens()  # in the step, before it failed
                self.scheduler.failed.clear()  # they hear of what has ended all
                self._hand_over(self._items_of([token for token in made if token[0].finish_reason is None]))
        with self.changed:
            self.closing = True
            unanswered = list(self.mailboxes)
        for session in unanswered:
            with suppress(Exception):  # after a failure the cache may be broken, too
                self.scheduler.cancel(session)
        self.scheduler.take_new_tokens()  # of a step that failed; who reads them hears of that instead
        self._hand_back()
        for session in unanswered:  # who hears of the end finds all blocks given back
            mailbox = self._mailbox_of_ended(session)
            if mailbox is not None:
                mailbox.put(End(session, self.failure))
                mailbox.wake()
        with suppress(Exception):  # it may be what has failed
            self.delivery.flush()

    def _step(self) -> None:
        """One step. What it has made is handed over in the next one, when the device has work and the host waits.

        Readers that wake while a step is planned would take the lock from the thread that plans it. Where nothing is in
        flight, there is nothing to wait for: then it is handed over at once.
        """
        made = self.scheduler.step()
        self._hand_over_made()  # of the step before, if this one has not waited
        self.pending = self._items_of(made)
        if not (self.pending and self.scheduler.runner.pipeline.in_flight):
            self._hand_over(self._take_pending())

    def _hand_over_made(self) -> None:
        if self.pending:
            self._hand_over(self._take_pending())

    def _take_pending(self) -> Handed:
        items, self.pending = self.pending, []
        return items

    def _hand_back(self) -> None:
        self.scheduler.before_landing = nothing
        self.scheduler.manager_thread = None
        self.scheduler.engine.guard.hand_back()

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
        ends = []
        if cancelled:
            self._hand_over_made()
        for session in dict.fromkeys(cancelled):
            self.scheduler.cancel(session)
            ends += self._ends(session)
        if ends:
            self._hand_over(ends)
        return not self.closing or (self.drain and self.scheduler.has_work)

    def _items_of(self, new_tokens: list[NewToken]) -> Handed:
        """What the readers are to have of a step. For a `SharedQueue`, all tokens are one item, or one between ends."""
        # Which token of a request that has ended is its last one.
        last = {s: number for number, (s, _) in enumerate(new_tokens) if s.finish_reason is not None}
        handed: Handed = []
        mailboxes = self.mailboxes
        together: dict[Mailbox, list[NewToken]] = {}  # shared queue -> tokens of its last item, to which more come
        for number, token in enumerate(new_tokens):
            session, token_id = token
            mailbox = mailboxes.get(session)
            if mailbox is None:
                continue
            if last and last.get(session) == number:
                handed.append((mailbox, NewTokenItem(session, token_id, session.finish_reason)))
                handed += self._ends(session)
                together.pop(mailbox, None)
            elif (tokens := together.get(mailbox)) is not None:
                tokens.append(token)
            elif isinstance(mailbox, SharedQueue):
                together[mailbox] = [token]
                handed.append((mailbox, Tokens(together[mailbox])))
            else:  # as NewTokenItem(...), without the call of a function written in Python
                handed.append((mailbox, tuple.__new__(NewTokenItem, (session, token_id, None))))
        while self.scheduler.failed:
            handed += self._ends(self.scheduler.failed.pop(), LogitsError([0]))
        return handed

    def _hand_over(self, items: Handed) -> None:
        """If this fails, the requests whose ends are among the items have not been answered."""
        self.delivery.hand_over(items)
        for _, item in items:
            if isinstance(item, End):
                self._mailbox_of_ended(item.session)

    def _ends(self, session: InferenceSession, error: BaseException | None = None) -> Handed:
        """The last item of a request, if it has not been given yet."""
        mailbox = self.mailboxes.get(session)
        return [] if mailbox is None else [(mailbox, End(session, error))]

    def _mailbox_of_ended(self, session: InferenceSession) -> Mailbox | None:
        with self.changed:
            return self.mailboxes.pop(session, None)


_steppers: weakref.WeakSet[Stepper] = weakref.WeakSet()


def _end_all_in_child() -> None:
    for stepper in _steppers:
        stepper.end_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_end_all_in_child)


def _end_and_join(stepper: weakref.ref[Stepper], thread: threading.Thread) -> None:
    """It keeps the thread, and not what the thread works with."""
    if (running := stepper()) is not None:
        running.end()
    thread.join()
