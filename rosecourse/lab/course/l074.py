"""Lesson 074, chunked prefill: a step is filled up to a budget of tokens, who decodes first, then the oldest prompt."""

from typing import Any

import torch

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ..checking.costs import Bound
from ..checking.models.filling import FillStories, Step
from .form import LINE, Course, small
from .scenes import Moments, Played, Sessions, Truth, key_at, side_by_side

LONG = "L"


def scene(engine: InferenceEngine) -> Moments:
    scheduler = OnlineScheduler(engine)
    sessions: Sessions = {"S": _submit(engine, scheduler, 3)}
    for moment in range(10):
        yield dict(sessions)
        if moment == 3:
            sessions[LONG] = _submit(engine, scheduler, 23)
        scheduler.step()


def _submit(engine: InferenceEngine, scheduler: OnlineScheduler, length: int) -> Any:
    prompt, params = [10 * length + n for n in range(length)], SamplingParams(max_new_tokens=12, stop_on_eos=False)
    session = engine.new_session(prompt, params)
    scheduler.submit(session)
    return session


def truth(hunt: Played) -> Truth:
    first: tuple[str, int] | None = None  # session and position
    spared = 0
    for _, right, ours, broken, theirs in side_by_side(hunt):
        for name, session in ours.items():
            for p in range(session.num_cached_tokens):
                key, found = key_at(right.kv, session, p, 1), key_at(broken.kv, theirs[name], p, 1)
                same = torch.allclose(key, found, atol=1e-4)
                first = first or (None if same else (name, p))
                spared = max(spared, p + 1) if same and name == LONG else spared
    assert first is not None, "the broken part writes the right keys: it is not broken"
    return {"session": {first[0]}, "position": {str(first[1])}, "spared": {str(spared)}}


COURSE = Course(
    world=FillStories,
    symptom=(
        "A short request runs alone, and is right. Then one with a long prompt arrives, which is computed in chunks. "
        "From then on the words of both are wrong. With a budget that is larger than both prompts together, the long "
        "one is right."
    ),
    tools=(
        "`bug.key_at(engine.kv, session, position, layer_idx)` is a key in the cache. Keys of layer 0 know nothing of "
        "the tokens before them; keys of layer 1 do.",
        "The part is the engine's `prefill`; a step that computes chunks calls its `compute` with a row of tokens. "
        "`tokens.lengths` has, for each session, the tokens that the cache has and those to compute. A session that "
        "decodes has one to compute.",
    ),
    questions={
        "session": "the session that has the first wrong key in layer 1",
        "position": "the position of that key",
        "spared": "how many tokens of the long prompt have right keys in layer 1",
        "line": LINE,
    },
    hints={
        "session": "Compare the keys of all sessions in both engines with `torch.allclose`, at each moment.",
        "position": "Look at the first moment that differs: which tokens were computed in its step?",
        "spared": "Compare the keys of the prompt when it is whole. Where does its first chunk end?",
        "line": "What may the token in row n of a chunk see, and what does it see?",
    },
    source='''\
from itertools import pairwise

import torch
from torch.nn.functional import softmax

from rosecourse.decode.prefill import PromptTokens


class Reader:
    """Reads a few leaves of each book, and remembers the leaves before."""

    def __init__(self, model, kv, config):
        self.model, self.kv, self.leaf = model, kv, kv.block_size
        self.scale = model.shape.head_dim**-0.5

    def pads(self, number):
        return []

    def __call__(self, books):
        tokens = PromptTokens(self.kv, books)
        return self.logits_of(tokens, len(books))

    def logits_of(self, tokens, number):
        ends = torch.tensor([0, *(new for _, new in tokens.lengths)]).cumsum(0).tolist()

        def attend(layer, q, k, v):
            self.kv.write_tokens(layer, tokens.blocks[layer], tokens.slots, k, v)
            asked = [q[begin:end] for begin, end in pairwise(ends)]
            each = zip(tokens.tables[layer], tokens.lengths, asked, strict=True)
            return torch.cat([self.look_up(layer, *one) for one in each])

        states = self.model.hidden(tokens.token_ids, tokens.positions, attend)
        return self.model.logits(states[tokens.last_rows[:number]])

    def look_up(self, layer, shelf, lengths, q):
        known, new = lengths
        place = torch.arange(known + new)
        at = shelf[place // self.leaf], slice(None), place % self.leaf
        k, v = (pool[layer][at] for pool in (self.kv.k_layers, self.kv.v_layers))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.scale
        later = place > torch.arange(new)[:, None]
        weights = softmax(scores.masked_fill(later, -torch.inf), -1)
        return torch.einsum("hqk,khd->qhd", weights, v)
''',
    fault="        later = place > torch.arange(new)[:, None]\n",
    mended="        later = place > place[known:, None]\n",
    config=small(4, 4, max_num_batched_tokens=8),
    scene=scene,
    truth=truth,
    replaces="prefill",
    idea=(Bound("tokens left over", (Step(16, 3, (3, 4, 9)), Step(8, 0, (5, 5))), "unused"),),
    unseen="how long a step takes",
)
