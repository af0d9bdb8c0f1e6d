"""The part `ops` of lessons 069 to 071: what a layer is computed with around its attention.

A story calls the five methods in any order, on streams that are under way at once. Beside each stream the model keeps
the sum that is right, in double precision; what is made of the stream must be made of this sum.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....config import EngineConfig
from ....decode.parts import DecodeParts
from ....models.gpt2 import GPT2, GPT2Shape
from ....models.ops import Norm
from .. import Wrong, counted, kind_of, must
from ..apart import STEP
from ..operations_seen import AddNorms, Born, no_reads
from ..stories import Op, Ops, Playing, told_sizes
from ..whole_engine import few_tokens

CLOSE = {torch.float32: 2e-5, torch.float16: 2e-2}  # of the largest number and 1
CONTEXT, REMEMBERED, STEPS_ALIKE, STREAMS = 64, 12, 4, "xy"
MANY = ("unread", "alike")  # operations that take several steps
WHOLE = ("embed", "step", *MANY)  # of so many rows
NO_KERNELS = (
    "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)
ASKS = {"norm_linear": ("ln_1", "attn_c_attn", "attn_c_proj"), "norm_linear_gelu": ("ln_2", "mlp_c_fc", "mlp_c_proj")}
OTHERS = ("the same part, other weights", "the same part, another vocabulary", "another part of the class")


@dataclass(frozen=True)
class Shape:
    """Of a model; the defaults are what shrinking goes for. mean: of the rows that a norm reads."""

    layers: int = 1
    width: int = 4
    vocab_size: int = 5
    eps: float = 1e-5
    mean: int = 0
    dtype: str = "float32"
    seed: int = 0
    __str__ = told_sizes

    def model(self, device: str) -> GPT2:
        shape = GPT2Shape(self.vocab_size, CONTEXT, self.width, self.layers, 1, self.eps)
        generator = torch.Generator().manual_seed(self.seed)
        weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in shape.parameters().items()}
        weights["wpe.weight"] += self.mean
        dtype = getattr(torch, self.dtype)
        return GPT2(shape, {name: w.to(dtype).to(device) for name, w in weights.items()}, None, "random")


class Stream:
    """A stream of the part's, whatever it is, and the sum that is right, [N, width]. products: that wait for their
    `linear_add`, by its weights."""

    def __init__(self, name: str, mine: Any, total: Tensor) -> None:
        self.name, self.mine, self.total = name, mine, total
        self.products: dict[str, Tensor] = {}


class Engine:
    """A model with an object of the part, and the streams under way in it."""

    def __init__(self, model: GPT2, made: Any, words: str = "") -> None:
        self.model, self.made, self.words = model, made, words
        self.was = {name: weight.clone() for name, weight in model.weights.items()}
        self.streams: list[Stream] = []
        self.embedded = 0

    def changed(self) -> str:
        """A weight that is not what it was; empty if all are."""
        if self.model.wte is not self.model.weights["wte.weight"]:
            return "model.wte"
        return next((name for name, weight in self.model.weights.items() if not same(weight, self.was[name])), "")


class Operations(Playing):
    """Models with a part, and what a story does with them. kernels: whether the part is to launch some."""

    part = "ops"
    kernels = False
    holds = "each product made of the right sum, by the right norm; nothing else was written"

    def __init__(self, part: type, shape: Shape, device: str = "cpu") -> None:
        super().__init__()
        self.kind, self.shape, self.device = part, shape, device
        self.around: Callable[[str], AbstractContextManager[Any]] = lambda method: nullcontext()  # calls of the part
        self.returned: deque[tuple[str, Tensor, Tensor]] = deque(maxlen=REMEMBERED)
        self.beside: dict[str, Engine] = {}  # by what it has in common with the first one

    def begin(self) -> None:
        model = self.shape.model(self.device)
        self.now = self.first = Engine(model, self.kind(model, EngineConfig()))

    def live_through(self, ops: Ops, tell: Callable[[Any], object]) -> None:
        with memory_is_nan_at_first():
            super().live_through(ops, tell)

    def do(self, op: Op) -> None:
        """Streams and layers are numbers, which count round those that are there."""
        STEP.begin()
        kind, number, *more = op
        if kind in ("other", *WHOLE):
            getattr(self, kind)(number)
        elif streams := self.now.streams:
            layer = [more[0] % self.shape.layers] if more else []
            getattr(self, kind)(streams[number % len(streams)], *layer, *more[1:])

    @staticmethod
    def engine(parts: DecodeParts, device: Any) -> DecodeParts:
        return parts

    def seen_by(self, watch: Any) -> Any:
        """What a step from here on is seen by: what watches each call of the part."""
        self.around = watch.calling
        return watch

    def say(self, line: str) -> None:
        self.lines.append(f"{self.now.words}: {line}" if self.now.words else line)
        self.listen(self.lines)

    def embed(self, rows: int) -> Stream:
        """A new stream; the oldest one of several ends. Two in a row are of the same words at other positions."""
        engine, model = self.now, self.now.model
        number, engine.embedded = engine.embedded, engine.embedded + 1
        words = [(3 + 7 * row + 5 * (number // 2)) % len(model.wte) for row in range(rows)]
        places = [(2 * row + number) % CONTEXT for row in range(rows)]
        given = torch.tensor([words, places], device=self.device)
        engine.streams = engine.streams[-len(STREAMS) + 1 :]
        used = [stream.name for stream in engine.streams]
        name = next(name for name in STREAMS if name not in used)
        self.say(f"{name} = embed({counted(rows, 'row')})")
        token_ids, positions = given[0].clone(), given[1].clone()
        mine = self.call("embed", (token_ids, positions), token_ids, positions, model.wte, model.wpe)
        total = model.wte[given[0]].double() + model.wpe[given[1]].double()
        engine.streams.append(Stream(name, mine, total))
        return engine.streams[-1]

    def norm_linear(self, stream: Stream, layer: int, method: str = "norm_linear", other_norm: str = "") -> None:
        norm_name, linear_name, goes_to = ASKS[method]
        norm_name = other_norm or norm_name
        block = self.now.model.layers[layer]
        norm, linear = getattr(block, norm_name), getattr(block, linear_name)
        self.say(f"{method}({stream.name}, {norm_name}, {linear_name} of layer {layer})")
        right = normed(stream.total, norm) @ linear.weight.double() + linear.bias.double()
        if method == "norm_linear_gelu":
            right = F.gelu(right, approximate="tanh")
        found = self.call(method, (), stream.mine, norm, linear)
        self.look(method, found, right, linear.weight)
        with self.around("attention"):
            stream.products[goes_to] = found if method == "norm_linear_gelu" else attention(found)

    def norm_linear_gelu(self, stream: Stream, layer: int) -> None:
        self.norm_linear(stream, layer, "norm_linear_gelu")

    def linear_add(self, stream: Stream, layer: int, name: str) -> None:
        """A product that waits goes in, or numbers that no operation has made."""
        linear = getattr(self.now.model.layers[layer], name)
        h = stream.products.pop(name, None)
        if h is None:
            generator = torch.Generator().manual_seed(len(self.lines))
            fresh = torch.randn(len(stream.total), len(linear.weight), generator=generator).to(linear.weight)
            with self.around("attention"):
                h = fresh.clone()
        self.say(f"{stream.name} = linear_add(h, {name} of layer {layer}, {stream.name})")
        wide = h.double()
        stream.mine = self.call("linear_add", (h,), h, linear, stream.mine)
        stream.total = stream.total + wide @ linear.weight.double() + linear.bias.double()

    def logits(self, stream: Stream) -> None:
        model = self.now.model
        self.say(f"logits({stream.name})")
        right = normed(stream.total, model.ln_f) @ model.wte.double().T
        self.look("logits", self.call("logits", (), stream.mine, model.ln_f, model.wte), right, model.wte)

    def other(self, which: int) -> None:
        """Go on with another engine, or back to the first."""
        if self.now is not self.first:
            self.now = self.first
            return
        words = OTHERS[which]
        if words not in self.beside:
            wider = self.shape.vocab_size + 33 if which == 1 else self.shape.vocab_size
            model = replace(self.shape, seed=self.shape.seed + 1 + which, vocab_size=wider).model(self.device)
            made = self.kind(model, EngineConfig()) if which == 2 else self.first.made
            self.beside[words] = Engine(model, made, words)
        self.now = self.beside[words]

    def step(self, rows: int) -> None:
        stream = self.embed(rows)
        for layer in range(self.shape.layers):
            self.norm_linear(stream, layer)
            self.linear_add(stream, layer, "attn_c_proj")
            self.norm_linear_gelu(stream, layer)
            self.linear_add(stream, layer, "mlp_c_proj")
        self.logits(stream)
        self.now.streams.remove(stream)

    def unread(self, rows: int) -> None:
        """A step like the one before, in which the host may read no number."""
        with self._as_one(f"two steps of {counted(rows, 'row')}"):
            self.step(rows)
            before, self.around = self.around, lambda method: no_reads(method)
            try:
                self.step(rows)
            finally:
                self.around = before

    def alike(self, rows: int) -> None:
        """Steps that are alike leave nothing behind."""
        with self._as_one(f"{STEPS_ALIKE} steps of {counted(rows, 'row')}"):
            self.step(rows)
            with Born() as second:
                self.step(rows)
            for _ in range(STEPS_ALIKE - 2):
                self.step(rows)
        self.returned.clear()
        if second.alive():
            gc.collect()
        if kept := second.alive():
            raise Wrong(f"none of the tensors of the second step may be left by now; found: {kept}")

    @contextmanager
    def _as_one(self, line: str) -> Iterator[None]:
        """What is done in here is one line of the story."""
        self.say(line)
        known = len(self.lines)
        try:
            yield
        finally:
            del self.lines[known:-1]
        self.lines.pop()

    def call(self, method: str, given: tuple[Tensor, ...], *arguments: Any) -> Any:
        """What a method of the part returns. given: what it must leave as it is, beside the weights."""
        before, adds = [tensor.clone() for tensor in given], AddNorms()
        with self.around(method), nullcontext() if self.kernels else adds:
            made = getattr(self.now.made, method)(*arguments)
        if made is None:
            raise Wrong(f"`{method}` must return what the next operation reads; found: None")
        if adds.wrong:
            raise Wrong(adds.wrong)
        changed = self.now.changed() or ("" if all(map(same, given, before)) else "h")
        if changed:
            raise Wrong(f"`{method}` must change nothing that it is given but a stream; it has changed {changed}")
        for what, tensor, then in self.returned:
            if not same(tensor, then):
                raise Wrong(f"`{method}` has overwritten what {what} has returned; whoever has that may still read it")
        return made

    def look(self, method: str, found: Any, right: Tensor, weight: Tensor) -> None:
        """A product must have these numbers, in the dtype of a weight."""
        must(f"what `{method}` returns", kind_of(right.to(weight.dtype)), kind_of(found))
        if found.stride(1) != 1 and found.shape[1] > 1:
            raise Wrong(f"the numbers of a row must lie side by side; `{method}` returns strides {found.stride()}")
        numbers, most = found.double(), CLOSE[found.dtype] * (1 + right.abs().max().item())
        wrong = ~((numbers - right).abs() <= most)
        if wrong.any():
            raise Wrong(_told(method, numbers, right, wrong, most))
        self.returned.append((f"`{self.lines[-1]}`", found, found.clone()))


def normed(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight.double(), norm.bias.double(), norm.eps)


def attention(qkv: Tensor) -> Tensor:
    """What stands in the place of attention: q, k and v, each with a weight of its own."""
    q, k, v = qkv.chunk(3, dim=1)
    return q + 0.5 * k + 0.25 * v


def same(now: Tensor, then: Tensor) -> bool:
    """Whether a tensor is what it was, bit by bit: a NaN is like another."""
    return now.shape == then.shape and (torch.equal(now, then) or torch.equal(now.nan_to_num(-5), then.nan_to_num(-5)))


def _told(method: str, found: Tensor, right: Tensor, wrong: Tensor, most: float) -> str:
    """The first row that is wrong, from its first wrong number on, and whose numbers it holds."""
    row, column = wrong.nonzero()[0].tolist()
    here = slice(column, column + 4)
    told = f"{int(wrong.sum())} of {wrong.numel()} numbers of `{method}` are wrong"
    told += f", the first in row {row}, column {column}"
    told += f"\nmust be {_shown(right[row, here])}\nfound:  {_shown(found[row, here])}"
    if found[row].isnan().any():
        return f"{told}; NaN is what lies in memory that nobody has written"
    others = (n for n in range(len(right)) if n != row and bool(((found[row] - right[n]).abs() <= most).all()))
    return told + next((f"; these are the numbers of row {n}" for n in others), "")


def _shown(numbers: Tensor) -> str:
    return ", ".join(f"{number:.5g}" for number in numbers.tolist())


@contextmanager
def memory_is_nan_at_first() -> Iterator[None]:
    """In here memory that is reserved holds NaN until it is written."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # what fills it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


class KernelOperations(Operations):
    """The same with kernels of the part's own."""

    kernels = True
    whole = staticmethod(few_tokens)

    @classmethod
    def untried(cls, kernels_on: str | None) -> str:
        """Why nothing can be tried; empty where it can. kernels_on: the device on which kernels run, if any does."""
        return "" if kernels_on else NO_KERNELS
