"""One engine, one scheduler and their shadow: whatever is done to the ones is done to the other, and compared."""

from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest

from rosecourse import (
    LESSONS,
    EngineConfig,
    InferenceEngine,
    KVCacheExhausted,
    OfflineScheduler,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    lesson,
)
from rosecourse.lessons.dense import DecodeForward as DenseForward
from rosecourse.request.session import samples_of
from tests.support import right_parts
from tests.support.failing import FaultAt, Planted
from tests.support.late_device import BEHIND, LATE, assert_nothing_in_flight, forgive
from tests.support.shadow import ShadowPool, ShadowSession
from tests.support.tag_model import CONTEXT, TagModel

AHEAD = {"behind": BEHIND, "late": LATE}  # whose steps are read one step later
PARTS = {rung.number: rung.after for rung in LESSONS}
OWN = lesson("061").after.with_(block_tables=right_parts.NumpyRows, kv_append=right_parts.IndexPut)
PARTS |= {"dense": lesson("061").after.with_(forward=DenseForward), "own": OWN} | AHEAD
SCHEDULERS = {"online": OnlineScheduler, "offline": OfflineScheduler}
MOST_LIVE, MOST_NEW = 8, 20  # sessions at a time, and tokens that one asks for


class Machine:
    """Submit, cancel, fork, preempt, squeeze and step; after each, everything that must be true is looked at.

    sick: (token, position) after which a request ends by NaN. strike: a `Line` that may interrupt the next call.
    counts: how often what happened.
    """

    def __init__(self, *, parts: str, scheduler: str, prefill_batch: int, sick: tuple = (), **config) -> None:
        """config: as of `EngineConfig`."""
        self.engine = InferenceEngine(TagModel(sick), EngineConfig(**config), PARTS[parts])
        self.scheduler = SCHEDULERS[scheduler](self.engine, prefill_max_batch_size=prefill_batch)
        self.kv, self.cache = self.engine.kv, self.engine.prefix_cache
        self.mixed = 0  # tokens of the last step, if it computed chunks of prompts
        if self.scheduler.budget is not None:
            self.watch_chunks(self.engine.runner.mix, self.scheduler.budget)
        self.pool = ShadowPool(self.kv)
        self.live: dict = {}  # session -> its shadow, in the order of arrival
        self.known: set = set()  # sessions that are or were live
        self.waited: Counter = Counter()  # session -> steps since its last token
        self.barren = 0  # steps without a token, one after another
        self.owed: list = []  # tokens made by steps that raised, and between steps: the next one returns them too
        self.ended: list = []  # sessions that are done, and whose blocks a step in flight still writes to
        self.squeezed: list = []  # tables that keep blocks from everyone
        self.planted: list[FaultAt] = []  # that are still to come
        self.strike = None
        self.failed = self.lost = False  # whether the last call did, and may have kept tokens for itself
        self.counts: Counter = Counter()

    # -- what can be done -----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The most tokens, prompt and completion, that a request may have; K and V of the last are never needed."""
        return min(self.kv.num_blocks * self.kv.block_size + 1, CONTEXT)

    @property
    def ahead(self) -> int:
        """How many steps later than it was launched a step's tokens are there."""
        return self.engine.pipeline.steps_ahead

    @property
    def holders(self) -> list:
        return [session for session in self.live if session.block_ids_per_layer is not None]

    def submit(self, prompt: list[int], max_new_tokens: int, stop_on_eos: bool = True, n: int = 1) -> None:
        if len(self.live) + n > MOST_LIVE:
            return
        params = SamplingParams(max_new_tokens=max_new_tokens, stop_on_eos=stop_on_eos)
        if len(prompt) + max_new_tokens > self.room:
            with pytest.raises(RequestError):
                self.engine.new_session(prompt, params)
            self.counts["refused"] += 1
            return
        session = self.engine.new_session(prompt, params)
        self.enter(session, ShadowSession(prompt, max_new_tokens, stop_on_eos, self.engine.model.sick))
        self.queue(session, samples_of(params, n)[1:])
        self.counts["sessions"] += 1
        self.check()

    def enter(self, session, shadow: ShadowSession) -> None:
        self.live[session] = shadow
        self.known.add(session)

    def queue(self, session, siblings=()) -> None:
        with self.trouble():
            self.scheduler.submit(session, siblings)
        if session not in self.scheduler.waiting:
            assert self.failed
            self.scheduler.submit(session, siblings)

    def cancel(self, number: int) -> None:
        """Cancel one, twice: the second time it has finished already, unless the first was interrupted."""
        if not self.live:
            return
        session = list(self.live)[number % len(self.live)]
        with self.trouble():
            self.scheduler.cancel(session)
        assert self.failed or session.finish_reason == "cancelled"
        failed = self.failed
        with self.trouble():  # a fault may have waited for the second, if the first was interrupted
            self.scheduler.cancel(session)
        self.failed |= failed
        assert session.finish_reason == "cancelled"
        assert session.token_ids == self.live[session].tokens, "it took a token after its end"
        assert session.table is None
        self.retire(session)
        self.grow()
        self.counts["cancels"] += 1
        self.barren = 0  # it may be a fork that had just started
        self.check()

    def fork(self, number: int, last_token: int | None = None, max_new_tokens: int | None = None) -> None:
        """Fork one that holds blocks; the fork goes on from another last token, or with another limit, if given."""
        if not self.holders or len(self.live) >= MOST_LIVE:
            return
        parent = self.holders[number % len(self.holders)]
        shadow = self.live[parent]
        most = min(shadow.max_new_tokens, max_new_tokens or MOST_NEW)
        params = SamplingParams(max_new_tokens=most, stop_on_eos=shadow.stop_on_eos)
        fork = None
        try:
            with self.trouble():
                fork = self.engine.fork(parent, params if max_new_tokens else None)
        except RequestError:  # its last token was in flight, or it is in the middle of its prompt
            self.grow()
            assert parent.finished or parent.awaits_prefill
        self.grow()
        if fork is not None:
            limit = most if max_new_tokens else shadow.max_new_tokens
            if last_token is not None:
                fork.token_ids[-1] = last_token
            self.enter(fork, shadow.fork(fork.token_ids[-1], limit))
            self.queue(fork)
            self.counts["forks"] += 1
        self.check()

    def preempt(self) -> None:
        with self.trouble():
            self.engine.settle()
        self.grow()
        with self.engine.guard:
            if not self.engine.runner.pipeline.in_flight:  # else an interrupt has left steps, and nobody preempts then
                self.scheduler._preempt_newest()
        self.grow()  # where the interrupt came before the first of them had landed
        self.barren = 0
        self.check()

    def squeeze(self, num_blocks: int) -> None:
        """Somebody else takes blocks: the pool is short until `release`."""
        num_blocks = min(num_blocks, self.kv.num_available())
        if num_blocks:
            self.squeezed.append(self.kv.allocate(num_blocks * self.kv.block_size))
            self.counts["squeezes"] += 1
            self.check()

    def release(self) -> None:
        if not self.squeezed:
            return
        while self.squeezed:
            self.kv.free(self.squeezed.pop())
        self.waited.clear()
        self.barren = 0
        self.check()

    def watch_chunks(self, mix, budget: int) -> None:
        """No step has more tokens than the budget, and no prompt gets any while an older one is left short."""

        def watched(decoding, chunks):
            self.mixed = len(decoding) + sum(chunks.values())
            assert self.mixed <= budget
            assert all(0 < size <= session.num_missing_tokens for session, size in chunks.items())
            assert all(size == session.num_missing_tokens for session, size in list(chunks.items())[:-1])
            self.counts["chunks"] += any(size < session.num_missing_tokens for session, size in chunks.items())
            return mix(decoding, chunks)

        self.engine.runner.mix = watched

    def step(self) -> None:
        self.mixed = 0
        head = next(iter(self.scheduler.running), None)
        in_prompt = head is not None and head.awaits_prefill
        head_is_due = not (head is None or in_prompt) and (self.ahead == 0 or self.engine.runner.is_in_flight(head))
        work = bool(self.live)
        told = None
        try:
            with self.trouble():
                told = self.scheduler.step()
        except KVCacheExhausted:
            assert self.squeezed, "the pool has blocks for each request alone, and nobody else holds any"
            self.counts["exhausted"] += 1
        grown = self.grow()
        self.check()
        if told is not None:
            told, owed = Counter(told), Counter(self.owed)
            assert told <= owed if self.lost else told == owed, "the steps returned other tokens than the sessions got"
            self.owed, self.lost = [], False
        if work and not self.squeezed and not self.failed:
            assert head in grown or not head_is_due, "the oldest that runs got no token"
            assert head is None or head in grown or head.finished or in_prompt or self.engine.runner.is_in_flight(head)
            self.barren += not grown and not self.mixed
            # One, if all it did was to let forks start, or to launch.
            assert self.barren < 2 + 2 * self.ahead, "steps without a token"
            for session in self.live:
                self.waited[session] += session not in grown and not self.mixed
                # Whoever is ahead has at most MOST_NEW tokens to go, and every second step gives one of them a token.
                assert self.waited[session] <= (2 + self.ahead) * MOST_LIVE * MOST_NEW, "a session starves"
        self.counts["tokens"] += sum(map(len, grown.values()))

    def finish(self) -> None:
        """Step until nothing is left; every block is available again."""
        self.release()
        self.pull_up()
        self.strike = None
        while self.scheduler.has_work:
            self.step()
        assert not self.live
        if self.counts["faults"] + self.counts["interrupts"]:
            forgive(self.engine)
        if self.ahead:
            assert_nothing_in_flight(self.engine)
        assert self.kv.num_available() == self.kv.num_blocks
        self.counts["preemptions"] = self.scheduler.stats.preemptions
        self.counts["evictions"] = self.pool.evictions

    # -- faults and interrupts ------------------------------------------------------------------------------------

    def pull_up(self) -> None:
        """No fault is planted any more."""
        while self.planted:
            self.planted.pop().remove()

    @contextmanager
    def trouble(self):
        """A call that a planted fault or an interrupt may end; after it nothing is lost but what `FaultAt` keeps."""
        line, self.strike, self.failed = self.strike, None, False
        try:
            with line or nullcontext():
                yield
        except Planted:
            self.failed = True
            self.counts["faults"] += 1
        if line is not None and line.struck:
            self.failed = True
            self.counts["interrupts"] += 1
        if any(fault.left <= 0 for fault in self.planted):  # an interrupt may have come in place of the fault
            self.lost |= any(fault.keeps_tokens for fault in self.planted)
            self.pull_up()
        if self.failed:
            self.waited.clear()
            self.barren = 0

    # -- what must be true ----------------------------------------------------------------------------------------

    def grow(self) -> dict:
        """The tokens that sessions got, each compared with what the request alone would get; a step owes them."""
        for session in list(self.live):
            for sample in session.samples:
                if sample not in self.known:
                    shadow = self.live[session]
                    self.enter(sample, shadow.fork(shadow.prompt[-1], shadow.max_new_tokens))
        grown = {}
        for session, shadow in list(self.live.items()):
            grown[session] = session.token_ids[len(shadow.tokens) :]
            reason = None
            for token in grown[session]:
                assert token == shadow.next_token, f"after {shadow.tokens} came {token}, not {shadow.next_token}"
                assert reason is None, "it took a token after its end"
                reason = shadow.generate()
                self.owed.append((session, token))
            if session.finish_reason == "error":
                assert shadow.next_token is None
                reason = "error"
                self.counts["errors"] += 1
            assert session.finish_reason == reason
            if reason is not None:
                self.retire(session)
            elif not grown[session]:
                del grown[session]
                continue
            self.barren = self.waited[session] = 0
        return grown

    def retire(self, session) -> None:
        if session.table is not None:
            self.ended.append(session)
        assert session not in self.scheduler.waiting
        assert session not in self.scheduler.running
        del self.live[session]
        self.waited.pop(session, None)

    def check(self) -> None:
        assert all(session.token_ids == shadow.tokens for session, shadow in self.live.items())
        waiting = list(self.scheduler.waiting)
        assert sorted(map(id, self.live)) == sorted(map(id, [*waiting, *self.scheduler.running]))
        # Who is preempted comes back first: those that wait are in the order of arrival, but for forks, which stay
        # where they are when their blocks are taken, and start before prompts that are admitted with them.
        # After a fault those that it has put back may stand before older ones that a later one puts back.
        prompts = [session for session, shadow in self.live.items() if not shadow.is_fork]
        in_order = [s for s in prompts if s in waiting] == [s for s in waiting if s in prompts]
        assert in_order or self.counts["faults"] + self.counts["interrupts"], "the queue is out of order"
        # Their blocks come back when no step in flight writes to them any more, and not later.
        self.ended = [session for session in self.ended if session.table is not None]
        assert all(self.engine.runner.is_in_flight(session) for session in self.ended)
        others = [*self.squeezed, *(session.table for session in self.ended)]
        holders = [(session, self.live[session]) for session in self.holders]
        cached = self.cache.entries() if self.cache is not None else []
        self.kv.audit([*(s.block_ids_per_layer for s, _ in holders), *others], cached)
        self.pool.check(holders, cached, others, self.engine.runner.is_in_flight)
