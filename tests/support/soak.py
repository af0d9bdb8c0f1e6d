"""A long random run of the machine of tests/support/machine.py: `make soak`. Hazard 23.

Each world is an engine of its own, drawn from the seed and the world's number alone: `--seed 5 --first 1234 --worlds 1`
repeats one that failed. `--parts behind late` are the engines with steps in flight.
"""

import argparse
import random
import sys
import time
from collections import Counter

import torch
from tqdm import tqdm

from tests.support.machine import MOST_NEW, PARTS, SCHEDULERS, Machine
from tests.support.tag_model import CONTEXT, VOCAB

STEPS_PER_WORLD = 400
FIGURES = ["worlds", "steps", "tokens", "sessions", "refused", "preemptions", "forks", "cancels", "copies", "evictions"]
FIGURES += ["squeezes", "exhausted"]


class World:
    """A machine, and a seeded hand that works it."""

    def __init__(self, seed: int, number: int, **fixed) -> None:
        self.random = random.Random(f"{seed} {number}")
        draw = self.random.choice
        self.config = {
            "parts": draw(list(PARTS)),
            "scheduler": draw(list(SCHEDULERS)),
            "block_size": draw([1, 2, 4, 16]),
            "num_blocks": draw([1, 2, 3, 4, 5, 6, 7, 24, 24]),  # 24: for large batches
            "prefix_cache": draw([True, False]),
            "batch": draw([1, 2, 4, 6]),
            "prefill_batch": draw([1, 2, 4, 6]),
        } | fixed
        self.machine = Machine(**self.config)
        # Prompts begin alike, and the same few tokens come again after other ones.
        self.stems = [[self.random.randrange(1, 4) for _ in range(CONTEXT)] for _ in range(2)]
        self.actions = [self.machine.step] * 24 + [self.submit] * 16 + [self.fork] * 3 + [self.machine.release] * 3
        self.actions += [self.cancel, self.machine.preempt, self.squeeze]

    def token(self) -> int:
        return self.random.randrange(VOCAB)

    def submit(self) -> None:
        longest = self.machine.room + (self.random.random() < 0.1)  # now and then one too many
        total = self.random.randint(2, self.random.choice([4, 12, longest]) if longest > 12 else longest)
        most = min(total - 1, MOST_NEW)
        new = self.random.choice([most, self.random.randint(1, most)])
        own = self.random.randrange(min(3, total - new))  # after a beginning that others have too
        prompt = self.random.choice(self.stems)[: total - new - own] + [self.token() for _ in range(own)]
        self.machine.submit(prompt, new, self.random.random() < 0.7)

    def cancel(self) -> None:
        self.machine.cancel(self.random.randrange(8))

    def fork(self) -> None:
        token = self.random.choice([None, self.token()])
        self.machine.fork(self.random.randrange(8), token, self.random.choice([None, None, 1, 9]))

    def squeeze(self) -> None:
        self.machine.squeeze(self.random.randint(1, 3))

    def run(self, steps: int = STEPS_PER_WORLD) -> Counter:
        """So many actions, and then what is left; returns what happened."""
        for _ in range(steps):
            self.random.choice(self.actions)()
        self.machine.finish()
        return self.machine.counts + Counter(worlds=1, steps=steps)


def soak(seed: int, first: int, worlds: int, parts: list[str]) -> Counter:
    """Run worlds one after another, of these parts in turns; returns what happened in all of them."""
    counts: Counter = Counter()
    with tqdm(total=worlds * STEPS_PER_WORLD, unit="step", unit_scale=True, mininterval=1.0) as bar:
        for number in range(first, first + worlds):
            world = World(seed, number, **({"parts": parts[number % len(parts)]} if parts else {}))
            try:
                counts += world.run()
            except BaseException:
                bar.close()
                named = f" --parts {world.config['parts']}" if parts else ""
                again = f"--seed {seed} --first {number} --worlds 1{named}"
                print(f"in {world.config}\nrepeat it: {again}", file=sys.stderr)
                raise
            bar.update(STEPS_PER_WORLD)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="draws all worlds (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first world (0)")
    parser.add_argument("--worlds", type=int, default=2500, help=f"of {STEPS_PER_WORLD} steps each (2500)")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=[], help="only these, in turns; else all")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small operations: threads that wait for each other cost more than they save
    start = time.perf_counter()
    counts = soak(args.seed, args.first, args.worlds, args.parts)
    seconds = time.perf_counter() - start
    print(f"seed {args.seed}, worlds {args.first} to {args.first + args.worlds - 1}: nothing wrong")
    for name in FIGURES:
        print(f"{name:12} {counts[name]:>10,}")
    print(f"{'seconds':12} {seconds:>10.1f}")


if __name__ == "__main__":
    main()
