"""Lesson 069, fewer kernels: a sum waits for the norm that needs it, attention appends, and a vocabulary is padded."""

import torch.nn.functional as F
from torch import Tensor

from ...decode.ops import MULTIPLE, LayerOps
from ...engine.engine import InferenceEngine
from ..checking.costs import Bound
from ..checking.models.operation_stories import OpStep
from ..checking.models.operations import Operations, Shape
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Sessions, Truth, first_wrong_token, start_lengths, steps


class PaddedOps(LayerOps):
    """The lesson's own operations, with a vocabulary that is padded on a CPU too."""

    def _padded(self, wte: Tensor) -> Tensor:
        if self.padded is None or self.padded[0] is not wte:
            self.padded = wte, F.pad(wte, (0, 0, 0, -len(wte) % MULTIPLE))
        return self.padded[1]


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 20})
    yield sessions
    yield from steps(engine, sessions, 5)
    sessions |= start_lengths(engine, {"B": 9, "C": 5, "D": 11})
    yield from steps(engine, sessions, 12)


def truth(hunt: Played) -> Truth:
    """A tile is two blocks long. For its second one the part takes the block of the pool that follows the first."""

    def tables_of(engine: InferenceEngine, sessions: Sessions) -> dict[str, list[int]]:
        return {name: list(session.table) for name, session in sessions.items()}

    name, moment, _, tables = first_wrong_token(hunt, tables_of)
    own = tables[name]
    followers = {own[n] + 1 for n in range(0, len(own) - 1, 2)} - set(own)
    reads = {other for other, table in tables.items() if followers & set(table)}
    return {"session": {name}, "moment": {moment}, "reads": reads}


STEPS = (
    OpStep("5 rows after steps of 5", 5, (5, 5, 5), Shape(2, 8, 97)),
    OpStep("1 row after steps of 1, in 3 layers", 1, (1, 1, 1), Shape(3, 8, 97)),
    OpStep("3 rows after steps of 3, in a model of 300 words", 3, (3, 3, 3), Shape(1, 8, 300)),
    OpStep("4 rows after steps of 1, 6, 8 and 3", 4, (1, 6, 8, 3), Shape(2, 8, 97)),
    OpStep("2 rows in one of two engines", 2, (2, 2, 2), Shape(2, 8, 97), beside=True),
)


COURSE = Course(
    world=Operations,
    beside=PaddedOps,
    symptom=(
        "A request that is served alone gets the right words, and stays right when others join. One of these others "
        "is right at its start, gets wrong words from some token on, and never recovers. All keys lie in the cache "
        "where they belong."
    ),
    tools=(
        "The part is the whole `forward`, with attention that appends: `broken.decode_step.runner.work.forward`.",
        "`list(session.table)` are a session's blocks; a block holds `engine.kv.block_size` tokens.",
    ),
    questions={
        "session": "the session whose words are wrong",
        "moment": FIRST_WRONG,
        "reads": "the session whose keys attention reads then, in place of its own",
        "line": LINE,
    },
    hints={
        "session": COMPARE_TOKENS,
        "moment": MOMENTS,
        "reads": "Print which blocks the colleague's part reads for that session, and look who has them.",
        "line": "How many blocks does a tile reach over, and how many of them does the part look up?",
    },
    source='''\
import torch


class ReadingRoom:
    """Attention as a kernel does it: a program for each session reads tiles of positions."""

    lanes = 16  # positions of a tile

    def __init__(self, model, kv, config):
        self.model, self.depth = model, kv.block_size
        self.shelves = list(zip(kv.k_layers, kv.v_layers, strict=True))
        self.scale = model.shape.head_dim**-0.5

    def __call__(self, inputs, append):
        self.rows = inputs.block_tables[0].long()
        self.ends = inputs.context_lens.tolist()
        read = self.model.hidden(inputs.token_ids, inputs.context_lens, self.attend)
        return self.model.logits(read)

    def attend(self, layer, q, k, v):
        rows = zip(range(len(q)), q, k, v, strict=True)
        return torch.stack([self.program(*self.shelves[layer], *row) for row in rows])

    def program(self, keys, values, n, q, k, v):
        end = self.ends[n]
        block, slot = self.rows[n, end // self.depth], end % self.depth
        keys[block, :, slot], values[block, :, slot] = k, v
        firsts = range(0, end + 1, self.lanes)
        tiles = [self.tile(n, first, min(first + self.lanes, end + 1)) for first in firsts]
        blocks, slots = map(torch.cat, zip(*tiles, strict=True))
        scores = (keys[blocks, :, slots] * q).sum(-1, keepdim=True) * self.scale
        return (scores.softmax(0) * values[blocks, :, slots]).sum(0)

    def tile(self, n, first, end):
        """Block and slot of each lane: the table is read once for a tile."""
        lane = torch.arange(end - first)
        shelf = self.rows[n, first // self.depth] * self.depth + first % self.depth + lane
        return shelf // self.depth, shelf % self.depth
''',
    fault="        shelf = self.rows[n, first // self.depth] * self.depth + first % self.depth + lane\n"
    "        return shelf // self.depth, shelf % self.depth\n",
    mended="        position = first + lane\n"
    "        return self.rows[n, position // self.depth], position % self.depth\n",
    config=small(8, 6),
    scene=scene,
    truth=truth,
    replaces="forward",
    idea=(
        Bound("operations that move data", STEPS, "operations"),
        Bound("columns of the last product, which are no multiple of 256", STEPS, "columns"),
    ),
    unseen="what a kernel costs, which product the library picks for a number of columns, and GELU as the end of one",
)
