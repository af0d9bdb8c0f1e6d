"""Long random runs: `make soak`. Each world is drawn from its number alone.

python -m tests.support.soak                                     all of them, at their usual length
python -m tests.support.soak faults --first 1234 --worlds 1      repeats one world that failed
python -m tests.support.soak lines                               interrupts at every line of every call
"""

import argparse
import random
import sys
import time
from collections import Counter
from functools import partial

import torch
from tqdm import tqdm

from tests.support.failing import FaultAt
from tests.support.interrupt_scenes import SCENES
from tests.support.interrupts import Line, strike_lines
from tests.support.machine import AHEAD, MOST_NEW, PARTS, SCHEDULERS, Machine
from tests.support.tag_model import CONTEXT, VOCAB

ENGINES = ["035", "061", "071", "own", "late"]  # that are interrupted at every line
ACTIONS = 40  # of a world that is interrupted at every line of each
CALLS = {  # what a fault may come in
    "runner": ["reserve", "prefill", "mix", "launch", "land", "begin"],
    "kv": ["can_append"],
    "decode_step": ["place", "copy_blocks", "plan", "runner"],
    "pipeline": ["launch", "land"],
}


class World:
    """A machine, and a seeded hand that works it; with trouble, it makes calls fail and interrupts others."""

    def __init__(self, number: int, trouble: bool = False, **fixed) -> None:
        self.random = random.Random(number)
        draw = self.random.choice
        if trouble:
            fixed = {
                "parts": draw([*AHEAD, draw(list(PARTS))]),
                "sick": draw([(), [(self.token(), self.random.randrange(20)) for _ in range(30)]]),
            } | fixed
        config = {
            "parts": draw(list(PARTS)),
            "scheduler": draw(list(SCHEDULERS)),
            "block_size": draw([1, 2, 4, 16]),
            "num_blocks": draw([1, 2, 3, 4, 5, 6, 7, 24, 24]),  # 24: for large batches
            "prefix_cache": draw([True, False]),
            "max_batch_size": draw([1, 2, 4, 6]),
            "prefill_batch": draw([1, 2, 4, 6]),
        }
        config |= fixed
        if config["scheduler"] == "online" and hasattr(PARTS[config["parts"]].pipeline, "begin"):
            more = self.random.choice([None, 0, 1, 5])  # tokens that a step has beside those of the largest batch
            config["max_num_batched_tokens"] = None if more is None else config["max_batch_size"] + more
        self.machine = Machine(**config)
        # Prompts begin alike, and the same few tokens come again after other ones.
        self.stems = [[self.random.randrange(1, 4) for _ in range(CONTEXT)] for _ in range(2)]
        self.actions = [self.machine.step] * 24 + [self.submit] * 16 + [self.fork] * 3 + [self.machine.release] * 3
        self.actions += [self.cancel, self.machine.preempt, self.squeeze] + [self.plant, self.strike] * 4 * trouble

    def token(self) -> int:
        return self.random.randrange(VOCAB)

    def submit(self) -> None:
        longest = self.machine.room + (self.random.random() < 0.1)  # now and then one too many
        total = self.random.randint(2, self.random.choice([4, 12, longest]) if longest > 12 else longest)
        most = min(total - 1, MOST_NEW)
        new = self.random.choice([most, self.random.randint(1, most)])
        own = self.random.randrange(min(3, total - new))  # after a beginning that others have too
        prompt = self.random.choice(self.stems)[: total - new - own] + [self.token() for _ in range(own)]
        self.machine.submit(prompt, new, self.random.random() < 0.7, self.random.choice([1, 1, 1, 1, 2, 3]))

    def cancel(self) -> None:
        self.machine.cancel(self.random.randrange(8))

    def fork(self) -> None:
        token = self.random.choice([None, self.token()])
        self.machine.fork(self.random.randrange(8), token, self.random.choice([None, None, 1, 9]))

    def squeeze(self) -> None:
        self.machine.squeeze(self.random.randint(1, 3))

    def plant(self) -> None:
        """One of the next calls of something raises."""
        engine, draw = self.machine.engine, self.random.choice
        owners = [(getattr(engine, name), calls) for name, calls in CALLS.items()]
        if engine.pipeline.steps_ahead:
            owners += [(slot, ["read", "write"]) for slot in engine.pipeline.ring.empty]
        owner, name = draw([(owner, name) for owner, names in owners for name in names if hasattr(owner, name)])
        fault = FaultAt(owner, name, self.random.randint(1, 4), draw(["before", "before", "after"]))
        self.machine.planted.append(fault)

    def strike(self) -> None:
        """The next call is interrupted in front of some line, if it has so many."""
        self.machine.strike = Line(int(2 ** self.random.uniform(0, 11)))

    def act(self) -> None:
        self.random.choice(self.actions)()

    def play(self, steps: int = 400) -> Counter:
        """So many actions, and then what is left; returns what happened."""
        for _ in range(steps):
            self.act()
        self.machine.finish()
        return self.machine.counts + Counter(worlds=1, steps=steps)


WORLDS = {"machine": (World, 2500), "faults": (partial(World, trouble=True), 2000)}


def soak(kind: str, first: int, worlds: int | None) -> Counter:
    """Play worlds one after another; returns what happened in all of them."""
    make, usual = WORLDS[kind]
    counts: Counter = Counter()
    for number in tqdm(range(first, first + (worlds or usual)), desc=kind, mininterval=1.0, file=sys.stderr):
        try:
            counts += make(number).play()
        except BaseException as error:
            error.add_note(f"repeat it: {kind} --first {number} --worlds 1")
            raise
    return counts


def strike_action(parts: str, number: int, at: int | None) -> int:
    """Play a world to action `number`, and interrupt that at a line; then all goes on. Returns how many it counted."""
    world = World(0, parts=parts, block_size=2, num_blocks=9, max_batch_size=4, prefix_cache=True)
    for _ in range(number):
        world.act()
    world.machine.strike = line = Line(at)
    world.act()
    world.machine.finish()
    return line.count


def every_line(parts: str) -> Counter:
    """Every line of each action of a world and of every other call is interrupted, in one engine."""
    counts: Counter = Counter()
    for number in tqdm(range(ACTIONS), desc=parts, file=sys.stderr):
        for at in range(strike_action(parts, number, None)):
            try:
                counts[f"lines of {parts}"] += strike_action(parts, number, at) > 0
            except BaseException as error:
                error.add_note(f"an interrupt came at line {at} of action {number}, with the parts of {parts}")
                raise
    for make in SCENES.values():
        counts[f"lines of {parts}"] += strike_lines(partial(make, parts))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = [*WORLDS, "lines"]
    parser.add_argument("kinds", nargs="*", default=kinds, help=f"some of {', '.join(kinds)} (all)")
    parser.add_argument("--first", type=int, default=0, help="number of the first world (0)")
    parser.add_argument("--worlds", type=int, help="how many of each kind")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small operations: threads that wait for each other cost more than they save
    start = time.perf_counter()
    for kind in args.kinds:
        counts = soak(kind, args.first, args.worlds) if kind in WORLDS else sum(map(every_line, ENGINES), Counter())
        print(f"{kind}: nothing wrong")
        for name, count in sorted(counts.items()):
            print(f"{name:20} {count:>10,}")
    print(f"{'seconds':20} {time.perf_counter() - start:>10.1f}")


if __name__ == "__main__":
    main()
