"""Interrupts for a long time: at every line of every scene, and by a timer at any time. `make soak`. Hazard 34."""

import argparse
import gc
import random
import signal
import sys
import time
from collections import Counter
from functools import partial
from itertools import starmap

import torch
from tqdm import tqdm

from rosecourse import OnlineScheduler, RequestError, SamplingParams
from tests.support.interrupt_scenes import SCENES, step_scene
from tests.support.interrupt_story import ENGINES, STEPS, make_engine, told_alone
from tests.support.interrupts import strike_lines

LONGEST = 0.004  # seconds until a timer goes off: longer than most of what it is to interrupt
STEMS = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2]]


class Timers:
    """One engine after another; everything that is done to them is done while a timer is running."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter = Counter()
        self.alone: dict = {}  # (prompt, params) -> its tokens without an interrupt

    def call(self, function, *arguments) -> list:
        """What a call returned, in a list; an empty one if it was interrupted. Nothing comes between call and list."""
        returned: list = []
        try:
            try:
                seconds = self.random.uniform(1e-6, self.random.choice([LONGEST, LONGEST / 20]))
                signal.setitimer(signal.ITIMER_REAL, seconds)
                returned.extend(starmap(function, [arguments]))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            self.counts["interrupts"] += 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return returned

    def world(self, parts: str) -> None:
        """An engine with a small pool, some requests and forks, to their end."""
        engine = make_engine(parts, self.random.choice([9, 12, 30]))
        scheduler = OnlineScheduler(engine)
        made: dict = {}
        for _ in range(self.random.randrange(2, 7)):
            self.submit(scheduler, made, engine.new_session(*self.request()))
        actions = [self.step] * 6 + [self.fork, self.cancel]
        while scheduler.has_work:
            self.random.choice(actions)(scheduler, made)
            live = [session for session in made if not session.finished]
            assert sorted(map(id, live)) == sorted(map(id, [*scheduler.waiting, *scheduler.running]))
            scheduler.audit()
        for session, tokens in made.items():
            assert tokens == session.completion_ids, "not what the steps returned"
            expected = self.expected(session)
            assert tokens == expected[: len(tokens)]
            assert len(tokens) == len(expected) or session.finish_reason == "cancelled"
        self.counts["preemptions"] += scheduler.stats.preemptions
        self.generate(engine)

    def generate(self, engine) -> None:
        requests = [self.request() for _ in range(3)]
        for tries in (self.call, lambda function, *arguments: [function(*arguments)]):  # the second is not interrupted
            for generations in tries(engine.generate, *map(list, zip(*requests, strict=True))):
                for generation, request in zip(generations, requests, strict=True):
                    assert generation.token_ids == self.expected(engine.new_session(*request))
            engine.audit([])
            assert engine.kv.num_available() == engine.kv.num_blocks

    def request(self) -> tuple[list[int], SamplingParams]:
        draw = self.random.randrange
        prompt = [*self.random.choice(STEMS)[: draw(1, 7)], draw(20, 23)]
        return prompt, SamplingParams(max_new_tokens=draw(2, 8), stop_on_eos=False, temperature=draw(2), seed=draw(2))

    def expected(self, session) -> list[int]:
        key = (tuple(session.prompt_ids), session.params)
        if key not in self.alone:
            (generation,) = make_engine("061", 64).generate([session.prompt_ids], session.params)
            self.alone[key] = generation.token_ids
        return self.alone[key]

    def submit(self, scheduler, made, session) -> None:
        self.call(scheduler.submit, session)
        if session not in scheduler.waiting:
            scheduler.submit(session)
        made[session] = list(session.completion_ids)
        self.counts["sessions"] += 1

    def step(self, scheduler, made) -> None:
        for new_tokens in self.call(scheduler.step):
            for session, token in new_tokens:
                made[session].append(token)

    def fork(self, scheduler, made) -> None:
        holders = [session for session in made if session.table is not None and not session.finished]
        if not holders or len(made) > 12:
            return
        parent = self.random.choice(holders)
        if made[parent] != parent.completion_ids:
            return  # a step that was interrupted owes some of them
        try:
            siblings = self.call(scheduler.engine.fork, parent)
        except RequestError:
            assert parent.finished  # its last token was in flight
            return
        for sibling in siblings:
            self.submit(scheduler, made, sibling)
            self.counts["forks"] += 1

    def cancel(self, scheduler, made) -> None:
        live = [session for session in made if not session.finished]  # none, where only tokens are owed
        if not live or self.random.random() < 0.7:
            return
        session = self.random.choice(live)
        self.call(scheduler.cancel, session)
        scheduler.cancel(session)
        assert session.finish_reason == "cancelled"
        self.counts["cancels"] += 1


def timers(seed: int, interrupts: int) -> Counter:
    """Worlds until so many interrupts have come; returns what happened."""
    soak = Timers(seed)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # hypothesis has one: an interrupt inside it would be swallowed
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with tqdm(total=interrupts, unit="interrupt", mininterval=1.0, file=sys.stderr) as bar:
            while soak.counts["interrupts"] < interrupts:
                soak.world(soak.random.choice(list(ENGINES)))
                soak.counts["worlds"] += 1
                bar.update(min(soak.counts["interrupts"], interrupts) - bar.n)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, *timer)
        gc.callbacks[:] = callbacks
    return soak.counts


def every_line(engines: list[str]) -> int:
    """Every line of every step of the story and of every other scene, in each of these engines; returns how many."""
    struck = 0
    for parts in engines:
        expected = told_alone(parts)
        scenes = {f"step {n}": partial(step_scene, parts, n, expected) for n in range(STEPS)}
        scenes |= {name: partial(make, parts) for name, make in SCENES.items()}
        for name, make in tqdm(scenes.items(), desc=parts, file=sys.stderr):
            try:
                struck += strike_lines(make)
            except BaseException as error:
                error.add_note(f"in {name}, with the parts of {parts}")
                raise
    return struck


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws the worlds of the timer's interrupts (0)")
    parser.add_argument("--interrupts", type=int, default=100_000, help="by a timer (100000)")
    parser.add_argument("--engines", nargs="*", default=["035", "061", "own"], help="to interrupt at every line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    print(f"{'lines':12} {every_line(args.engines):>10,}")
    for name, count in timers(args.seed, args.interrupts).items():
        print(f"{name:12} {count:>10,}")
    print(f"{'seconds':12} {time.perf_counter() - start:>10.1f}")


if __name__ == "__main__":
    main()
