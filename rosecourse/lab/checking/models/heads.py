"""The part of 073: attention whose query heads share K and V. A story is a batch of contexts in blocks."""

import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....config import EngineConfig
from ....decode import BEST
from .. import Wrong, counted, kind_of, must
from ..operations_seen import DataMoves, moves_data
from ..stories import Playing, Stories, Story, told_sizes
from .operations import CLOSE, same

LARGE = 64  # so many times as large are q and K in float16, which cannot say such scores
COUNTED = 64  # tokens of the context in a call that is counted: more than it has query heads


@dataclass(frozen=True)
class Heads:
    """The defaults are what shrinking goes for. group: query heads of a KV head."""

    kv_heads: int = 1
    group: int = 1
    head_dim: int = 2
    block_size: int = 1
    dtype: str = "float32"
    __str__ = told_sizes

    @property
    def words(self) -> str:
        return f"1 session with {counted(self.group, 'query head')} for each of {counted(self.kv_heads, 'KV head')}"


class Attending(Playing):
    """Contexts in one layer of a cache, in which slots without a token are NaN."""

    def __init__(self, part: type, sizes: Heads, *contexts: int) -> None:
        super().__init__()
        self.part, self.sizes, self.contexts = part, sizes, [*contexts]

    def begin(self) -> None:
        """The part is made with the cache, at the end."""

    def _context(self, length: int) -> None:
        self.contexts.append(length)
        self.say(f"{chr(64 + len(self.contexts))}: {counted(length, 'token')} in the cache")

    def end(self) -> None:
        if self.contexts:
            self.say("one new token of each attends")
            self.attend()

    def attend(self, watch: AbstractContextManager[Any] | None = None) -> None:
        """One call for all contexts; the last token of `k` and `v` is the new one. watch: around the call."""
        H_kv, D, size = self.sizes.kv_heads, self.sizes.head_dim, self.sizes.block_size
        B, T, dtype = len(self.contexts), max(self.contexts), getattr(torch, self.sizes.dtype)
        dice, large = torch.Generator().manual_seed(T), LARGE if dtype == torch.float16 else 1
        table = torch.randperm(B * -(-T // size), generator=dice).view(B, -1)
        sizes = {"num_layers": 1, "num_kv_heads": H_kv, "head_dim": D, "block_size": size, "num_blocks": table.numel()}
        kv = BEST.cache(**sizes, dtype=dtype, device=torch.device("cpu"))
        q = (large * torch.randn(B, H_kv * self.sizes.group, D, generator=dice)).to(dtype)
        k, v = ((n * torch.randn(B, T + 1, H_kv, D, generator=dice)).to(dtype) for n in (large, 1))
        kv.keys.fill_(float("nan"))
        kv.values.fill_(float("nan"))
        for b, length in enumerate(self.contexts):
            at = torch.arange(length)
            kv.write_tokens(0, table[b, at // size], at % size, k[b, :length], v[b, :length])
        given = (q, kv.k_layers[0], kv.v_layers[0], table.int(), torch.tensor(self.contexts), T, k[:, -1], v[:, -1])
        before, part = [one.clone() for one in given[:3]], self.part(None, kv, EngineConfig())
        with watch or nullcontext():
            found = part.attention(*given)
        must("what `attention` returns", kind_of(q), kind_of(found))
        for b in range(B):
            self.look(b, found[b].double(), q[b].double(), k[b].double(), v[b].double(), CLOSE[dtype])
        if not all(map(same, given, before)):
            raise Wrong("`attention` must change nothing that it is given; it has changed q or the cache")

    def look(self, b: int, found: Tensor, q: Tensor, k: Tensor, v: Tensor, most: float) -> None:
        """The numbers of a session: found, q: [H, D]; k, v: [T + 1, H_kv, D]."""
        seen = [*range(self.contexts[b]), -1]

        def attended(heads: Any) -> Tensor:
            scores = (k[seen][:, heads] * q).sum(-1) * q.shape[-1] ** -0.5
            return (scores.softmax(0)[..., None] * v[seen][:, heads]).sum(0)

        heads = torch.arange(len(q)) // self.sizes.group
        right = attended(heads)
        wrong = ~((found - right).abs() <= most * (1 + right.abs().max()))
        if wrong.any():
            h, d = wrong.nonzero()[0].tolist()
            told = f"session {chr(65 + b)}, query head {h}, number {d} must be {right[h, d]:.5g}, of KV head {heads[h]}"
            told += f"; found: {found[h, d]:.5g}" + ", of a slot without a token" * bool(found[h, d].isnan())
            others = range(self.sizes.kv_heads)
            read = [f", of KV head {n}" for n in others if torch.allclose(attended([n])[h], found[h], 1e-3, most)]
            raise Wrong(told + "".join(read))


class Copies(DataMoves):
    """heads: how often K of one context and head would fit into the new tensors, of which smaller ones do not count."""

    def __init__(self, numbers: int) -> None:
        super().__init__(lambda: False)
        self.numbers, self.heads = numbers, 0

    def look(self, func: Any, made: Any) -> None:
        if isinstance(made, Tensor) and moves_data(func) and made.is_floating_point():
            self.heads += made.numel() // self.numbers


class HeadsStories(Stories):
    part, count, at_least_one = "forward", 120, frozenset({("context", 0)})
    holds = "every query head has attended to the K and V of its group"
    engine = staticmethod(lambda parts, device: parts)

    def number(self, n: int) -> Story:
        dice, dtype = random.Random(n), ("float32", "float16")[n % 4 == 3]
        heads = (dice.choice([2, 1, 3, 8]), dice.choice([3, 1, 2, 4, 7]), dice.choice([8, 64, 2, 6, 128]))
        lengths = [dice.choice([1, 2, 3, 4, 5, 16, 17, 40]) for _ in range(dice.randint(1, 4))]
        sizes = Heads(*heads, block_size=dice.choice([4, 1, 16, 64]), dtype=dtype)
        return Story(sizes, tuple(("context", length) for length in lengths))

    def played(self, part: type, sizes: Heads) -> Attending:
        return Attending(part, sizes)

    def watched(self, part: type, heads: Heads) -> Copies:
        watch = Copies(COUNTED * heads.head_dim)
        Attending(part, heads, COUNTED).attend(watch)
        return watch
