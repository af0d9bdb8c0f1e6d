"""Lesson 070, five kernels a layer: what surrounds a product of our own is done in its kernel."""

from types import SimpleNamespace
from typing import Any

from ...engine.engine import InferenceEngine
from ..checking.costs import Bound
from ..checking.models.operation_stories import OpStep
from ..checking.models.operations import KernelOperations, Shape
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Sessions, Truth, first_wrong_token, start_lengths, steps


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 7, "B": 12, "C": 4, "D": 9})
    yield sessions
    yield from steps(engine, sessions, 4)
    sessions |= start_lengths(engine, {"E": 6})
    yield from steps(engine, sessions, 4)
    del sessions["B"]
    sessions |= start_lengths(engine, {"F": 10})
    yield from steps(engine, sessions, 5)


def truth(hunt: Played) -> Truth:
    def left_over(engine: InferenceEngine, sessions: Sessions) -> str:
        """The largest counter that a step has left behind in the last map of layer 0."""
        step: Any = engine.decode_step
        model = step.runner.work.forward.model
        counters = model.ops.handed_in.get(model.layers[0].mlp_c_proj)
        return "" if counters is None else str(int(counters.max()))

    name, moment, handed_in, _ = first_wrong_token(hunt, left_over)
    return {"session": {name}, "moment": {moment}, "handed_in": {handed_in}}


STEPS = (
    OpStep("5 rows after one of 5", 5, (5,), Shape(1, 8, 97)),
    OpStep("5 rows after one of 5, 32 columns wide", 5, (5,), Shape(1, 32, 97)),
    OpStep("4 rows after steps of 1 and 8", 4, (1, 8), Shape(1, 8, 97)),
    OpStep("2 rows in one of two engines", 2, (2,), Shape(1, 8, 97), beside=True),
)


COURSE = Course(
    world=KernelOperations,
    beside=SimpleNamespace(operations=6, times_read=1),
    symptom=(
        "Four requests are right, however long they become. A fifth joins: its first step is right, too, and all "
        "later ones are wrong. One of the first four ends, and another request takes the last place: it is wrong from "
        "its first step on."
    ),
    tools=(
        "The part is `broken.decode_step.runner.work.forward.model.ops`. It keeps its counters by the linear maps of "
        "the model, such as `model.layers[0].mlp_c_proj`.",
    ),
    questions={
        "session": "the first session with wrong words",
        "moment": FIRST_WRONG,
        "handed_in": "the largest counter for `mlp_c_proj` of layer 0 that the step before has left behind",
        "line": LINE,
    },
    hints={
        "session": COMPARE_TOKENS,
        "moment": MOMENTS,
        "handed_in": "Look into `handed_in` of the part at the moment before, and find what is not 0.",
        "line": "How many tiles does a product have once its rows do not fit into one, and which counters are reset?",
    },
    source='''\
import torch
import torch.nn.functional as F


class Workbenches:
    """A product in pieces of tiles; the program with a tile's last piece adds up the tile."""

    tall, wide, deep = 4, 64, 128

    def __init__(self, model, config):
        self.handed_in = {}

    def embed(self, token_ids, positions, wte, wpe):
        return wte[token_ids] + wpe[positions]

    def norm_linear(self, x, norm, linear):
        return self.product(norm(x), linear, x.new_zeros(len(x), len(linear.bias)))

    def norm_linear_gelu(self, x, norm, linear):
        return F.gelu(self.norm_linear(x, norm, linear), approximate="tanh")

    def linear_add(self, h, linear, x):
        return self.product(h, linear, x.clone())

    def logits(self, x, norm, wte):
        return norm(x) @ wte.T

    def product(self, h, linear, sheet):
        across, down = -(-sheet.shape[1] // self.wide), -(-len(h) // self.tall)
        pieces, heap = -(-h.shape[1] // self.deep), {}
        counters = self.handed_in.setdefault(linear, torch.zeros(1024, dtype=torch.int64))
        for piece in range(pieces):
            inputs = slice(piece * self.deep, (piece + 1) * self.deep)
            for tile in range(down * across):
                row, column = divmod(tile, across)
                rows = slice(row * self.tall, (row + 1) * self.tall)
                columns = slice(column * self.wide, (column + 1) * self.wide)
                part = h[rows, inputs] @ linear.weight[inputs, columns]
                heap[tile] = heap.get(tile, 0) + part
                counters[tile] += 1
                if counters[tile] == pieces:
                    sheet[rows, columns] += heap[tile] + linear.bias[columns]
        counters[:across] = 0
        return sheet
''',
    fault="        counters[:across] = 0\n",
    mended="        counters[: down * across] = 0\n",
    config=small(8, 6),
    scene=scene,
    truth=truth,
    replaces="ops",
    idea=(
        Bound("operations and launches", STEPS, "operations"),
        Bound("reads of each weight in a launch", STEPS, "times_read"),
    ),
    unseen="what a kernel costs, which tiles suit a GPU, and half precision",
)
