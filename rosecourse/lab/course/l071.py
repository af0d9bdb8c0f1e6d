"""Lesson 071, the gaps between kernels: a kernel starts early, asks for what nobody writes, and then waits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..checking.costs import Bound
from ..checking.models.operations import Shape
from ..checking.models.orders import OrderedOperations, Orders
from ..checking.operation_stories import OpStep
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Bug, Course, Exercise
from .operations import PlainOps, WaitsAtOnce, WaitsLate
from .scenes import Played, Sessions, Truth, first_wrong_token, start, steps

EXERCISE = Exercise(
    name="MyOps",
    difficulty=3,
    minutes=40,
    begins_as=WaitsAtOnce,
    ends_as=WaitsLate,
    beside=(("linear_add_kernel",), ("early_linear_add_kernel",)),
    given=PlainOps,
    methods={"linear_add": ""},
    text=(
        "The cell holds operations whose `linear_add` is a Triton kernel. It is right, and is launched with "
        "`launch_pdl=True`, so that it may start while the kernel before it is still at work. Nothing comes of that: "
        "its first line waits. Reorder the kernel, so that what can be asked for before the wait is on its way by "
        "then: the bias, and the first tile of the weights. The rest of the class stays as it is.\n\n"
        "`wait()` returns when the kernel before has ended, and all that it has written can be read. `start_next()` "
        "lets the next kernel start, as soon as every program has called it or has ended. All kernels keep an "
        "agreement. Before its wait a kernel reads nothing that the kernel before it writes, and stores nothing. Each "
        "program waits once, also one that has no work. Each one with work calls `start_next()` once, after its wait "
        "and before it stores. So whenever a kernel runs, the one two before it has ended, and may be read before the "
        "wait. Any operation of PyTorch counts as a kernel here, and a model may add to a stream twice in a row. "
        "`check` looks in Triton's interpreter at what each program reads, stores and calls, and when."
    ),
    docstring=(
        "What a layer is computed with around its attention.\n\n"
        "Goal: each program of the kernel in `linear_add` has asked for the bias and for weights before it waits."
    ),
    look=(
        "For each `tl.load` in the kernel: who has written what it reads, and how many kernels ago? And which programs "
        "return before they come to the end?"
    ),
    do=(
        "Weights and bias are there since before the step: their loads go above `wait()`, with the pointers and masks "
        "that they need. Load the first tile of the weights before the wait; in the loop, use the tile that you have, "
        "and then load the next one, behind a mask that is empty in the last round.\n\n"
        "`h` has just been made. The old value of the sum is two or three kernels old in GPT-2, but in a model that "
        "adds twice in a row the kernel before has written it, so that its load stays behind the wait. The early "
        "`return` goes behind the wait, too: a program without work has to wait like all others."
    ),
)


def words(n: int, length: int) -> list[int]:
    """A prompt of its own for each n."""
    return random.Random(n).choices(range(4096), k=length)


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start(engine, {"A": words(1, 12), "B": words(2, 7)})
    yield sessions
    yield from steps(engine, sessions, 3)
    engine.free(sessions.pop("A"))
    sessions |= start(engine, {"C": words(3, 5)})
    yield from steps(engine, sessions, 3)
    sessions |= start(engine, {"D": words(6, 9)})
    yield from steps(engine, sessions, 6)


def truth(hunt: Played, model: Model) -> Truth:
    name, moment, rows, _ = first_wrong_token(hunt, model, lambda engine, sessions: len(sessions))
    return {"session": {name}, "moment": {moment}, "rows": {str(rows)}}


class Belt:
    """A simulated device. A kernel is a generator: up to its `yield`, its wait, it runs beside the one before it."""

    def __init__(self) -> None:
        self.at_work: Iterator[str] = iter(())

    def put(self, kernel: Iterator[str]) -> None:
        """Launch a kernel."""
        next(kernel)
        self.finish()
        self.at_work = kernel

    def finish(self) -> None:
        """Wait for the last kernel."""
        for _ in self.at_work:
            pass


COLLEAGUES_FILE = '''\
import torch
import torch.nn.functional as F

from rosecourse.kernels import ReferenceAttention
from rosecourse.lab.course.l071 import Belt


class FiveOnABelt:
    """Five kernels a layer; the number of rows lies on the device."""

    def __init__(self, model, kv, config):
        self.model, self.attention, self.belt = model, ReferenceAttention(kv), Belt()
        most, width = config.max_batch_size, model.shape.width
        self.taken = torch.tensor(most)
        self.total, self.heard = torch.zeros(most, width), torch.zeros(most, width)
        self.asked, self.wider = torch.zeros(most, 3 * width), torch.zeros(most, 4 * width)

    def __call__(self, inputs, append):
        put = self.belt.put
        self.attention.plan(inputs.block_tables, inputs.context_lens, inputs.max_context_len)
        put(self.look_up(inputs))
        for floor, layer in enumerate(self.model.layers):
            put(self.ask(layer.ln_1, layer.attn_c_attn))
            put(self.listen(floor, append))
            put(self.add(self.heard, layer.attn_c_proj))
            put(self.widen(layer.ln_2, layer.mlp_c_fc))
            put(self.add(self.wider, layer.mlp_c_proj))
        self.belt.finish()
        return self.model.ln_f(self.total[: self.taken]) @ self.model.wte.T

    def look_up(self, inputs):
        words, places = self.model.wte, self.model.wpe
        yield "look up"
        self.taken.fill_(len(inputs.token_ids))
        self.total[: self.taken] = words[inputs.token_ids] + places[inputs.context_lens]

    def ask(self, norm, linear):
        rows = self.taken.item()
        yield "ask"
        self.asked[:rows] = linear(norm(self.total[:rows]))

    def listen(self, floor, append):
        asked = self.asked[: self.taken].unflatten(1, (3, self.model.shape.num_heads, -1))
        yield "listen"
        q, k, v = asked.unbind(dim=1)
        append(floor, k, v)
        self.heard[: len(q)] = self.attention.run(floor, q, k, v).flatten(1)

    def add(self, source, linear):
        total = self.total[: self.taken]
        yield "add"
        total += linear(source[: len(total)])

    def widen(self, norm, linear):
        last = int(self.taken)
        yield "widen"
        self.wider[:last] = F.gelu(linear(norm(self.total[:last])), approximate="tanh")
'''


BUG = Bug(
    minutes=25,
    symptom=(
        "Two requests that start together are right to their end, and so is a request that takes the place of one that "
        "leaves. But a request that joins while all others stay gets wrong words, and never recovers. If each kernel "
        "waits at its first line, everything is right."
    ),
    tools=(
        "The part is the whole `forward`, `broken.decode_step.runner.work.forward`. A kernel is a generator: up to its "
        "`yield`, its wait, it runs beside the one before it, and may read only what is two kernels old.",
    ),
    questions={
        "session": "the session whose words are wrong",
        "moment": FIRST_WRONG,
        "rows": "how many rows the wrong kernel takes in that step",
        "line": LINE,
    },
    hints={
        "session": COMPARE_TOKENS,
        "moment": MOMENTS,
        "rows": "What does the kernel read of the number of rows, and who has written it last when it does?",
        "line": "One of the five kernels of a layer comes right after another one that is no part of a layer.",
    },
    source=COLLEAGUES_FILE,
    fault='        rows = self.taken.item()\n        yield "ask"\n',
    mended='        yield "ask"\n        rows = self.taken.item()  # the kernel before may have written it\n',
    config=EngineConfig(block_size=8, max_batch_size=6, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    part="forward",
    explanation=(
        "At moment 7 session D gets its first wrong token: the kernel `ask` of the first layer takes two rows for a "
        "batch of three.\n\n"
        "All five kernels read the number of rows before their wait. The embedding writes that number at the start of "
        "a step. Four of the five come two kernels later or more, when it has ended. `ask` of the first layer comes "
        "right after it, and finds the number of the step before. Mostly that is the same number. After a session has "
        "left it is larger, and a row is computed in vain. After a session has joined it is too small: the last row "
        "keeps what lay there, and its keys stay in the cache. What is one kernel old must be read after the wait, "
        "even if it rarely changes."
    ),
)

STEPS = (
    OpStep("3 rows after steps of 3", 3, (3, 3), Shape(2, 8, 97)),
    OpStep("18 rows after steps of 18", 18, (18, 18), Shape(1, 8, 97)),
)
COUNTED: dict[str, Callable[[Orders], int]] = {
    "sums without a kernel": lambda orders: orders.plain,
    "launches without `launch_pdl=True`": lambda orders: orders.held,
    "weights and biases asked for only after the wait": lambda orders: orders.tensors("asked_late"),
    "weights and biases read before the wait and once more after it": lambda orders: orders.tensors("asked_again"),
    "programs that store before `start_next()`": lambda orders: orders.silent,
    "waits beyond one": lambda orders: orders.too_many("wait"),
    "calls of `start_next()` beyond one": lambda orders: orders.too_many("start"),
}
IDEA = tuple(Bound(words, STEPS, lambda cost, step, count=count: count(cost(step))) for words, count in COUNTED.items())

COURSE = Course(
    number="071",
    world=OrderedOperations,
    exercise=EXERCISE,
    bug=BUG,
    idea=IDEA,
    unseen="how long a kernel would wait, and how much of two kernels runs at once",
)
