"""Everything at once: requests, samples, forks, cancels, ends of text, NaN, preemption, faults and interrupts.

Each world is drawn from its number alone. Every session must get the tokens that its request gets alone, or the first
of them if it is cancelled.
"""

import gc
import random
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

from rosecourse import OfflineScheduler, OnlineScheduler, RequestError, SamplingParams
from tests.support.failing import FaultAt, Planted
from tests.support.late_device import forgive
from tests.support.machine import AHEAD, PARTS
from tests.support.oracles import prompts_of
from tests.support.pipelines import Run, SickModel, alone, make_engine
from tests.support.tag_model import VOCAB

ACTIONS = 60
CALLS = ["reserve", "prefill", "launch", "land", "begin"]
STAGES = ["place", "copy_blocks", "plan", "runner"]
MOST = 40  # sessions
LONGEST = 0.004  # seconds until a timer goes off: longer than most of what it is to interrupt


class FaultWorld:
    """A scheduler over a small pool, and a seeded hand that works it."""

    def __init__(self, number: int, interrupts: bool = True) -> None:
        self.random = random.Random(number)
        draw = self.random.choice
        self.counts: Counter = Counter()
        self.interrupts = interrupts
        self.model = SickModel()
        self.engine = make_engine(
            PARTS[draw(list(AHEAD)) if draw([True, True, False]) else draw(list(PARTS))],
            self.model,
            num_blocks=draw([7, 8, 9, 12, 30, 64]),
            max_batch_size=draw([1, 2, 3, 4, 6]),
            prefix_cache=draw([True, True, False]),
        )
        kind = draw([OnlineScheduler, OfflineScheduler])
        self.run = Run(self.engine, kind, prefill_max_batch_size=draw([1, 2, 4]))
        if draw([True, False, False]):
            self.model.sick = {(self.random.randrange(VOCAB), self.random.randrange(20)) for _ in range(30)}
        self.stops = draw([True, False])
        self.engine.eos_token_id = self.random.randrange(VOCAB)
        self.stems = prompts_of([12, 12], VOCAB, seed=self.random.randrange(3))
        self.start: dict = {}  # of each fork, the tokens that it began with
        self.planted: list = []

    # -- what is done -----------------------------------------------------------------------------------------------

    def submit(self) -> None:
        draw = self.random
        if len(self.run.samples) > MOST:
            return
        prompt = draw.choice(self.stems)[: draw.randrange(9)] + [
            draw.randrange(VOCAB) for _ in range(draw.randint(1, 3))
        ]
        params = SamplingParams(
            draw.randint(1, 12),
            temperature=draw.choice([0.0, 0.0, 1.0]),
            seed=draw.randrange(4),
            stop_on_eos=self.stops,
        )
        self.run.submit(prompt, params, draw.choice([1, 1, 1, 2, 3]))

    def fork(self) -> None:
        parents = [s for s in self.run.samples if not s.finished and s.table is not None and s.completion_ids]
        if not parents or len(self.run.samples) > MOST:
            return
        parent = self.random.choice(parents)
        try:
            fork = self.engine.fork(parent)
        except RequestError:  # its last token was in flight
            assert parent.finished
            return
        if self.random.random() < 0.5:
            fork.token_ids[-1] = self.random.randrange(VOCAB)
        self.start[fork] = list(fork.token_ids)
        self.run.add(fork)
        self.counts["forks"] += 1

    def cancel(self) -> None:
        live = [session for session in self.run.samples if not session.finished]
        if live:
            session = self.random.choice(live)
            self.run.scheduler.cancel(session)
            assert session.table is None
            self.counts["cancels"] += 1

    def settle(self) -> None:
        self.engine.settle()

    def plant(self) -> None:
        """One of the next calls of something raises, before it has done anything or after it has done all."""
        draw = self.random
        fault = FaultAt(draw.randint(1, 4), draw.choice(["before", "before", "after"]))
        owners = [
            (self.engine.runner, CALLS),
            (self.engine.kv, ["can_append"]),
            (self.engine.decode_step, STAGES),
            (self.engine.pipeline, ["launch", "land"]),
        ]
        if self.engine.pipeline.steps_ahead:
            owners += [(slot, ["read", "write"]) for slot in self.engine.pipeline.ring.empty]
        owner, name = draw.choice([(owner, name) for owner, names in owners for name in names if hasattr(owner, name)])
        self.planted.append((owner, name, getattr(owner, name)))
        fault.wrap(owner, name)

    def interrupted_step(self) -> None:
        """A step while a timer is running."""
        with timer(self.random.uniform(1e-6, self.random.choice([LONGEST, LONGEST / 20]))):
            self.run.step()

    def pull_up(self) -> None:
        """No fault is planted any more."""
        while self.planted:
            setattr(*self.planted.pop())

    # -- a whole world ----------------------------------------------------------------------------------------------

    def play(self, actions: int = ACTIONS) -> Counter:
        """So many actions, and then what is left; returns what happened."""
        choices = (
            [self.run.step] * 20 + [self.submit] * 5 + [self.fork] * 3 + [self.plant] * 2 + [self.cancel, self.settle]
        )
        choices += [self.interrupted_step] * 4 * self.interrupts
        for _ in range(4):
            self.submit()
        for _ in range(actions):
            try:
                self.random.choice(choices)()
            except (Planted, KeyboardInterrupt) as error:
                self.counts["faults" if isinstance(error, Planted) else "interrupts"] += 1
                self.pull_up()
                self.run.kept = set(self.run.samples)  # a call that has done its work keeps what it would have given
            self.run.check()
        self.pull_up()
        self.finish()
        return self.counts + Counter(
            worlds=1, preemptions=self.run.scheduler.stats.preemptions, sessions=len(self.run.samples)
        )

    def finish(self) -> None:
        if self.counts["faults"] + self.counts["interrupts"]:
            forgive(self.engine)
        self.run.finish(1000)
        for session in self.run.samples:
            tokens, reason = self.expected(session)
            made = session.token_ids[len(self.start.get(session, session.prompt_ids)) :]
            self.counts[session.finish_reason] += 1
            if session.finish_reason == "cancelled":
                assert made == tokens[: len(made)]
            else:
                assert (made, session.finish_reason) == (tokens, reason)

    def expected(self, session) -> tuple[list[int], str]:
        """What a session gets by itself, from the tokens that it began with."""
        known = self.start.get(session, session.prompt_ids)
        left = session.params.max_new_tokens - len(known) + len(session.prompt_ids)
        whole = [*known, *alone(tuple(known), replace(session.params, max_new_tokens=left, stop_on_eos=False))[0]]
        for place in range(len(known), len(whole)):
            if (whole[place - 1], place - 1) in self.model.sick:
                return whole[len(known) : place], "error"
            if self.stops and whole[place] == self.engine.eos_token_id:
                return whole[len(known) : place + 1], "stop"
        return whole[len(known) :], "length"


@contextmanager
def timer(seconds: float):
    """SIGINT after so many seconds, wherever that is."""
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # hypothesis has one: an interrupt inside it would be swallowed
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, *before)
        gc.callbacks[:] = callbacks
