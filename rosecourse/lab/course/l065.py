"""Lesson 065, batched copy-on-write: the copies of a step are made together."""

from dataclasses import replace

from ...engine.engine import InferenceEngine
from ..checking.costs import INSIDE, Bound, N, Step, growth
from ..checking.models.appends import CopyBlocks
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, fork, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"D": 7, "A": 6})
    yield sessions
    sessions["D2"] = fork(engine, sessions["D"])
    yield from steps(engine, sessions, 1)
    for name in ("A2", "A3"):
        sessions[name] = fork(engine, sessions["A"])
    yield from steps(engine, sessions, 4)


def truth(hunt: Played) -> Truth:
    wrong = first_wrong_keys(hunt)[-1]
    positions = [position for _, _, position in wrong]
    return {"session": {wrong[0][0]}, "first": {str(min(positions))}, "last": {str(max(positions))}}


COPIES = (
    replace(INSIDE, words=f"{N} sessions, of which 9 write into blocks of others", forks=9),
    Step("36 sessions, all of which write into blocks of others", (3,) * 36, forks=36),
    replace(INSIDE, words="6 sessions, of which 4 write into blocks of others", lengths=INSIDE.lengths[:6], forks=4),
)

COURSE = Course(
    world=CopyBlocks,
    symptom=(
        "With two samples of a prompt all is right. With three, one of them goes wrong in the first step after the "
        "fork, and the other two stay right. If the three make their first steps one after another, all are right."
    ),
    tools=(KEY_AT,),
    questions={
        "session": "the first session with wrong keys",
        "first": "the first position at which its key is wrong then",
        "last": "the last position at which its key is wrong then",
        "line": LINE,
    },
    hints={
        "session": "Compare all keys of all sessions in both engines, moment by moment.",
        "first": "A key is wrong if the right engine shows another one at this position of the same session.",
        "last": "The session's newest key was written behind the copies. Is it wrong, too?",
        "line": "Print `copies` in the step after the forks. How many copies are left of it?",
    },
    source='''\
import torch


class Duplicator:
    """Takes all layers at once; a row is a block with its heads and slots in one line."""

    def __init__(self, model, kv, config):
        self.device = kv.device
        self.rows = [pool.flatten(start_dim=2) for pool in (kv.keys, kv.values)]

    def __call__(self, copies):
        wanted = self.distinct(copies)
        if wanted:
            old = self.column(pair.source for pair in wanted)
            new = self.column(pair.destination for pair in wanted)
            for pool in self.rows:
                pool.index_copy_(1, new, pool.index_select(1, old))

    def distinct(self, copies):
        """Nothing is copied twice, whatever the list says."""
        known = {}
        for pair in copies:
            known[pair.source] = pair
        return list(known.values())

    def column(self, blocks):
        return torch.tensor(list(blocks), dtype=torch.int64, device=self.device)
''',
    fault="            known[pair.source] = pair\n",
    mended="            known[pair.destination] = pair\n",
    config=small(4, 8),
    scene=scene,
    truth=truth,
    idea=(
        Bound("operations beyond those of half the copies", COPIES, growth),
        Bound("stores of K and V", COPIES[:1], "stores", spare=12),  # a loop over layers and heads does not grow
        Bound("torch operations", (INSIDE,), "operations"),
    ),
)
