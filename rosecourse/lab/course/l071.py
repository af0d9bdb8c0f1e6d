"""Lesson 071, the gaps between kernels: a kernel starts early, asks for what nobody writes, and then waits."""

import random
from collections.abc import Callable, Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...kernels import add_norm_on
from ...models.ops import LayerOps
from ...models.shape import Model
from ..checking.costs import Bound
from ..checking.models.operation_stories import OpStep
from ..checking.models.operations import Shape
from ..checking.models.orders import OrderedOperations, Orders
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Truth, first_wrong_token, start, steps


def words(n: int, length: int) -> list[int]:
    """A prompt of its own for each n."""
    return random.Random(n).choices(range(4096), k=length)


def scene(engine: InferenceEngine) -> Moments:
    sessions = start(engine, {"A": words(1, 12), "B": words(2, 7)})
    yield sessions
    yield from steps(engine, sessions, 3)
    engine.free(sessions.pop("A"))
    sessions |= start(engine, {"C": words(3, 5)})
    yield from steps(engine, sessions, 3)
    sessions |= start(engine, {"D": words(6, 9)})
    yield from steps(engine, sessions, 6)


def truth(hunt: Played) -> Truth:
    name, moment, rows, _ = first_wrong_token(hunt, lambda engine, sessions: len(sessions))
    return {"session": {name}, "moment": {moment}, "rows": {str(rows)}}


class PlainOps(LayerOps):
    """What the exercise derives from: an operation of PyTorch after another. The stream is a tensor [N, C]."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.add_norm = add_norm_on(model.device)  # add_norm(x, delta, weight, bias, eps)


class Belt:
    """A simulated device. A kernel is a generator: up to its `yield`, its wait, it runs beside the one before it."""

    def __init__(self) -> None:
        self.at_work: Iterator[str] = iter(())

    def put(self, kernel: Iterator[str]) -> None:
        next(kernel)
        self.finish()
        self.at_work = kernel

    def finish(self) -> None:
        for _ in self.at_work:
            pass


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
    world=OrderedOperations,
    beside=Orders(),
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
    source='''\
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
''',
    fault='        rows = self.taken.item()\n        yield "ask"\n',
    mended='        yield "ask"\n        rows = self.taken.item()  # the kernel before may have written it\n',
    config=small(8, 6),
    scene=scene,
    truth=truth,
    replaces="forward",
    idea=IDEA,
    unseen="how long a kernel would wait, and how much of two kernels runs at once",
)
