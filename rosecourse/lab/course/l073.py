"""Lesson 073, another family: attention reads K and V once for all query heads of a group."""

from functools import partial
from typing import Any

import torch

from ...engine.engine import InferenceEngine
from ...models.llama import Llama, LlamaShape, Turn
from ..checking.costs import Bound
from ..checking.models.heads import Heads, HeadsStories
from .form import KEY_AT, LINE, Course, small
from .scenes import Moments, Played, Truth, key_at, side_by_side, start_lengths, steps


def small_llama() -> Llama:
    """In groups of three query heads; its tokens depend much on what attention reads."""
    shape, dice = LlamaShape(97, 160, 48, 96, 2, 6, 2, 8, tied=True), torch.Generator().manual_seed(0)
    weights = {name: 0.3 * torch.randn(size, generator=dice) for name, size in shape.parameters().items()}
    return Llama(shape, {name: w.fill_(1) if w.dim() == 1 else w for name, w in weights.items()}, None, "small Llama")


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 9, "B": 6, "C": 7})
    yield sessions
    yield from steps(engine, sessions, 4)
    waiting = sessions.pop("B")
    engine.free(waiting)  # as a scheduler preempts it
    yield from steps(engine, sessions, 2)
    engine.take_tokens([waiting], engine.prefill([waiting]))
    sessions["B"] = waiting
    yield sessions
    yield from steps(engine, sessions, 5)


def truth(hunt: Played) -> Truth:
    close = partial(torch.allclose, atol=1e-3)
    for _, right, ours, broken, theirs in side_by_side(hunt):
        model: Any = right.model
        for name, session in ours.items():
            for p in range(session.num_cached_tokens):
                key, found = key_at(right.kv, session, p), key_at(broken.kv, theirs[name], p)
                if not close(key, found):
                    back = model.rotations * torch.tensor([[1], [-1]])  # by so many positions
                    turned = {str(n) for n in range(p) if close(Turn(back[[p - n]])(key[None])[0], found)}
                    return {"session": {name}, "position": {str(p)}, "turned": turned}
    raise AssertionError("the broken part writes the right keys: it is not broken")


COURSE = Course(
    world=HeadsStories,
    symptom=(
        "Requests are right while they keep their blocks. One that is preempted and computed again goes on with wrong "
        "words. When it has just come back, all of its V in layer 0 are right, and so is the norm of each of its K."
    ),
    tools=(
        KEY_AT,
        "The model is a small Llama, `engine.model`; the part is its `prefill`. `Turn(engine.model."
        "rotations[[n]])(key[None])[0]`, of `rosecourse.models.llama`, turns a key by n positions.",
    ),
    questions={
        "session": "the session whose words are wrong",
        "position": "the first position at which its key is wrong",
        "turned": "the position for which that key is turned",
        "line": LINE,
    },
    hints={
        "session": "Compare `token_ids` in both engines at the last moment.",
        "position": "Compare its keys in both engines with `torch.allclose`, as soon as it is back.",
        "turned": "The right key, turned on by some more positions, is the wrong one turned by others: try them all.",
        "line": "What has a session that comes back, and what has a new one not?",
    },
    source='''\
import torch


class Copyist:
    """Writes the K and V of whole manuscripts, one after another."""

    def __init__(self, model, kv, config):
        self.model, self.kv, self.depth = model, kv, kv.block_size
        shape = model.shape
        self.share, self.scale = shape.num_heads // shape.num_kv_heads, shape.head_dim**-0.5

    def __call__(self, sessions):
        return torch.cat([self.copy(session) for session in sessions])

    def copy(self, session):
        leaves = session.prompt_ids, session.completion_ids
        words = torch.tensor([word for leaf in leaves for word in leaf])
        places = torch.tensor([place for leaf in leaves for place in range(len(leaf))])
        shelves = self.kv.block_indices([session.table])[:, 0]
        row = torch.arange(len(words))
        blocks, slots = shelves[:, row // self.depth], row % self.depth

        def attend(layer, q, k, v):
            self.kv.write_tokens(layer, blocks[layer], slots, k, v)
            k, v = (each.repeat_interleave(self.share, 1) for each in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
            weights = scores.masked_fill(row > row[:, None], -torch.inf).softmax(-1)
            return torch.einsum("hqk,khd->qhd", weights, v)

        return self.model.logits(self.model.hidden(words, places, attend)[-1:])
''',
    fault="        places = torch.tensor([place for leaf in leaves for place in range(len(leaf))])\n",
    mended="        places = torch.arange(len(words))\n",
    config=small(4, 4),
    scene=scene,
    truth=truth,
    replaces="prefill",
    idea=(Bound("copies of K or V of a KV head", (Heads(2, 8, 32, 16),), "heads", spare=8),),
    unseen="what a kernel reads, and how often",
    model=small_llama,
)
