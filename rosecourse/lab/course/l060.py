"""Lesson 060, identity and constant position: index tensors that say nothing are left out."""

from ...engine.engine import InferenceEngine
from ..checking import costs
from ..checking.costs import Bound
from ..checking.models.appends import KVAppend
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, first_wrong_keys, start, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 4, "B": 12, "C": 20, "D": 4})
    yield sessions
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("A"))  # it has been cancelled
    sessions |= start(engine, {"E": [41] * 10})  # the newcomer
    yield from steps(engine, sessions, 3)


def truth(hunt: Played) -> Truth:
    right, ours, _, wrong = first_wrong_keys(hunt)
    lost = [(name, at) for name, session, at in wrong if at < session.num_cached_tokens - 1]
    (position,) = (at for name, at in lost if name == "C")
    size = right.kv.block_size
    whose = {name for name, one in ours.items() if (one.num_cached_tokens - 1) % size == position % size}
    return {"position": {str(position)}, "whose": whose}


FORKED = (costs.SAME_SLOT_FORKED, costs.INSIDE_FORKED)
ANY = (costs.SAME_SLOT, costs.INSIDE, costs.FULL, costs.FEW, costs.FEW_FULL, *FORKED)

COURSE = Course(
    world=KVAppend,
    symptom=(
        "Four requests are right, step after step. Then one is cancelled, another takes its place, and soon requests "
        "that have nothing to do with either get wrong tokens. If the newcomer comes one step later, nothing happens."
    ),
    tools=(KEY_AT,),
    questions={
        "position": "request `C` loses a key that it had: the position of that key",
        "whose": "the request whose slot is used for all requests in that step",
        "line": LINE,
    },
    hints={
        "position": (
            "Compare all keys in both engines at the first moment with the newcomer. A new key is missing where it "
            "belongs, and has been written over an old one. We are looking for the old one."
        ),
        "whose": "Write down the slot of each request in that step. Which of them is used for all?",
        "line": "When does this part look at the slots, and how does it know that what it saw still holds?",
    },
    source='''\
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Tells the device only what it cannot know."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.size, self.level = 0, False

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            writers, copiers = {}, {}
            for row, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                block = self.block_for(layer, ids)
                if block.owners == 1:
                    writers[row] = block
                else:
                    copiers[row] = ids
            if writers:
                self.store(layer, (k, v), writers)
            for row, ids in copiers.items():
                self.kv.append_token(layer, ids, k[row], v[row])

    def block_for(self, layer, ids):
        """A session's last block; a new one behind it if it is full."""
        if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))
        return self.kv.info(ids[-1])

    def store(self, layer, new, writers):
        if len(writers) < len(new[0]):
            rows = index_tensor(list(writers), self.kv.device)
            new = [tensor.index_select(0, rows) for tensor in new]
        blocks = list(writers.values())
        where = index_tensor([block.block_index for block in blocks], self.kv.device)
        slots = self.slots_of(blocks)
        for layers, rows in zip((self.kv.k_layers, self.kv.v_layers), new, strict=True):
            layers[layer][where, :, slots] = rows
        for block in blocks:
            block.length += 1

    def slots_of(self, blocks):
        """One number if all sessions write to the same slot, else a tensor."""
        slots = [block.length for block in blocks]
        if len(slots) != self.size:  # sessions at one slot advance together
            self.size, self.level = len(slots), len(set(slots)) == 1
        return min(slots) if self.level else index_tensor(slots, self.kv.device)
''',
    fault=(
        "        if len(slots) != self.size:  # sessions at one slot advance together\n"
        "            self.size, self.level = len(slots), len(set(slots)) == 1\n"
    ),
    mended="        self.size, self.level = len(slots), len(set(slots)) == 1  # in every step\n",
    config=small(8, 4),
    scene=scene,
    truth=truth,
    idea=(
        Bound("index tensors", ANY, "index_tensors", spare=2),
        Bound("copies of rows of K and V", ANY, "rows"),
    ),
)
