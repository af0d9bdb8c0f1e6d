"""Lesson 038, the batched append: all that is simple is written with one store a layer."""

from ...engine.engine import InferenceEngine
from ..checking.costs import ALONE, FEW, INSIDE, INSIDE_FORKED, NEARLY_FULL, PARTED, Bound, growth
from ..checking.models.appends import KVAppend
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, key_at, owner_of, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 6, "B": 5, "C": 7, "D": 4})
    yield sessions
    yield from steps(engine, sessions, 8)


def truth(hunt: Played) -> Truth:
    right, ours, broken, wrong = first_wrong_keys(hunt)
    name, session, position = wrong[0]
    whose = owner_of(key_at(broken.kv, session, position), right.kv, ours)
    return {"session": {name}, "position": {str(position)}, "whose": {whose}}


COURSE = Course(
    world=KVAppend,
    symptom=(
        "In a batch of mixed lengths, a request goes wrong in the step in which it begins a new block; its text shows "
        "it some tokens later. If all requests have the same length, they are right."
    ),
    tools=(KEY_AT,),
    questions={
        "session": "which of `A`, `B`, `C`, `D` is the first to get a wrong key",
        "position": "the position of that key",
        "whose": "the request whose key it is",
        "line": LINE,
    },
    hints={
        "session": (
            "Compare `bug.key_at(engine.kv, session, position)` of both engines at every moment. Only the first "
            "difference counts, since the tokens differ from there on."
        ),
        "position": "The step in which a request begins a block writes one key, into slot 0. Which position is that?",
        "whose": "Compare the wrong key with the keys that the right engine has written in the same step.",
        "line": "Which row of the new keys belongs to a session, and which row does this path give it?",
    },
    source='''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Writes what has room together, and leaves the others to the manager."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            tables = [session.block_ids_per_layer[layer] for session in sessions]
            blocks = [self.block_with_room(ids) for ids in tables]
            easy = [row for row, block in enumerate(blocks) if block is not None]
            others = [ids for ids, block in zip(tables, blocks, strict=True) if block is None]
            if easy:
                self.store(layer, easy, [blocks[row] for row in easy], k, v)
            for ids, one_k, one_v in zip(others, k[len(easy) :], v[len(easy) :], strict=True):
                self.kv.append_token(layer, ids, one_k, one_v)

    def block_with_room(self, ids):
        """A session's last block if it has a free slot of its own, else None."""
        last = self.kv.info(ids[-1]) if ids else None
        return last if last and last.owners == 1 and last.length < self.kv.block_size else None

    def store(self, layer, rows, blocks, k, v):
        taken = index_tensor(rows, self.kv.device)
        where = index_tensor([block.block_index for block in blocks], self.kv.device)
        slots = index_tensor([block.length for block in blocks], self.kv.device)
        for cache, new in ((self.kv.k_layers[layer], k), (self.kv.v_layers[layer], v)):
            cache[where, :, slots] = new[taken]
        for block in blocks:
            block.length += 1
''',
    fault="            for ids, one_k, one_v in zip(others, k[len(easy) :], v[len(easy) :], strict=True):\n",
    mended=(
        "            rest = [row for row, block in enumerate(blocks) if block is None]\n"
        "            left_k, left_v = k[rest].unbind(), v[rest].unbind()\n"
        "            for ids, one_k, one_v in zip(others, left_k, left_v, strict=True):\n"
    ),
    config=small(4, 4),
    scene=scene,
    truth=truth,
    idea=(
        Bound("append_token calls", (INSIDE, NEARLY_FULL, FEW, ALONE, PARTED, INSIDE_FORKED), "calls"),
        Bound("stores of K and V", (INSIDE, NEARLY_FULL), "stores"),
        Bound("operations beyond those of half the sessions", (INSIDE, NEARLY_FULL), growth),
    ),
)
