"""Which replica gets a prompt: the one that knows its beginning, unless it is too busy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate

PIECE = 16  # tokens: a prefix is known by so many, twice as many, ...
AHEAD = 3.0  # how much more load a prompt's home may have than the least loaded replica
RUNNING = 0.25  # the load of a request that runs, beside that of having had it
FORGETS = 0.01  # the part of a replica's past requests that each new one lets fade
MOST_PREFIXES = 2**18


class Routes:
    """The home of each prefix: the replica that got it last.

    The load of a replica is what it has had of late and, with less weight, what it still runs: replicas get the same
    share of requests, and a slow one gets fewer. A prompt whose home has too much load gets a new home, which computes
    its prefix once more.
    """

    def __init__(self) -> None:
        self.homes: dict[int, Hashable] = {}
        self.had: dict[Hashable, float] = {}

    def route(self, prompt: Sequence[int], running: Mapping[Hashable, int]) -> Hashable:
        """The replica of a prompt. running: the requests of each replica that can be taken."""
        if running.keys() != self.had.keys():
            self.had = dict.fromkeys(running, 0.0)  # else a new one would get all requests for a while
        load = {one: had + RUNNING * running[one] for one, had in self.had.items()}
        least = min(load, key=load.__getitem__)
        keys = prefix_keys(prompt)
        home = next((self.homes[key] for key in reversed(keys) if self.homes.get(key) in load), least)
        if load[home] - load[least] > AHEAD:
            home = least
        for key in keys:
            self.homes.pop(key, None)  # the prefixes of late are the last
            self.homes[key] = home
        while len(self.homes) > MOST_PREFIXES:
            del self.homes[next(iter(self.homes))]
        self.had = {one: (1 - FORGETS) * had + (one == home) for one, had in self.had.items()}
        return home


def prefix_keys(prompt: Sequence[int]) -> list[int]:
    """A number for each prefix of whole pieces, the shortest first."""
    pieces = (prompt[end - PIECE : end] for end in range(PIECE, len(prompt) + 1, PIECE))
    return list(accumulate(pieces, lambda key, piece: hash((key, *piece)), initial=0))[1:]
