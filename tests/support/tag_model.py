"""A model without weights, for tests that take very many steps: exact whole numbers, and tokens that tell on the cache.

It is a `Model` as the engine wants one. The K and V that a token leaves in a slot say which token, position, layer and
head they are, and above the first layer what the whole prefix was. Its next token depends on every V of the context
(one head takes their mean) and on a K (the other head looks one position up by it): a wrong, stale or foreign slot
makes another token. All numbers are whole and small enough for float32 to hold them, so that the order of a sum, and
with it the batch, the kernel and a prefix hit, make no difference.
"""

from types import SimpleNamespace

import tokenizers
import torch
from tokenizers.models import WordLevel

from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.models.shape import Attend

VOCAB, CONTEXT, LAYERS, HEADS, HEAD_DIM = 61, 48, 2, 2, 4
EOS = (0, 20, 40)
PRIME = 4093  # tags are numbers below it: the sum of CONTEXT of them is exact in float32
SHARPNESS = 32.0  # of the head that looks one position up: its neighbours weigh exp(-32)


class TagModel:
    """`hidden` and `logits` as `GPT2` has them; `ShadowSession` of `shadow.py` says the same in plain Python.

    sick: (token, position) after which logits are NaN, in whichever row they are.
    """

    def __init__(self, sick=()) -> None:
        self.sick = set(sick)
        self.shape = GPT2Shape(VOCAB, CONTEXT, HEADS * HEAD_DIM, LAYERS, HEADS)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.tokenizer, self.name = SimpleNamespace(eos_token_id=EOS), "tags"
        place = torch.arange(LAYERS * HEADS, dtype=torch.float32).view(LAYERS, 1, HEADS)
        self.places = torch.zeros(LAYERS, 2, 1, HEADS, HEAD_DIM)  # in K and in V, the last number: which layer and head
        self.places[:, 0, ..., 3], self.places[:, 1, ..., 3] = 100 + place, 200 + place

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """token_ids, positions: int64 [N]; returns int64 [N, 1], a tag of each token's whole prefix."""
        count = positions + 1
        tag = (37 * token_ids + 101 * positions) % PRIME
        q = torch.zeros(len(positions), HEADS, HEAD_DIM)  # head 0: all scores are 0
        for layer_idx in range(LAYERS):
            k = torch.stack([positions, positions * positions, tag, token_ids], dim=1)[:, None]
            v = torch.stack([tag, token_ids, positions, positions], dim=1)[:, None]
            k, v = k + self.places[layer_idx, 0], v + self.places[layer_idx, 1]
            # Head 1: the score of position p is -SHARPNESS * (p - target)^2, but for a constant.
            target = (5 * tag + layer_idx) % count
            q[:, 1, 0], q[:, 1, 1] = 2 * SHARPNESS * HEAD_DIM**0.5 * target, -SHARPNESS * HEAD_DIM**0.5
            out = attend(layer_idx, q, k, v)
            total = (out[:, 0, 0] * count).round().long()
            looked_up = out[:, 1, 0].round().long()
            tag = (3 * tag + 7 * total + 11 * looked_up + 13) % PRIME
        for token, position in self.sick:
            tag[(token_ids == token) & (positions == position)] = -1
        return tag[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, 1] to logits [N, VOCAB]: one token is certain."""
        return torch.zeros(len(hidden), VOCAB).scatter_(1, hidden % VOCAB, 1000.0).masked_fill(hidden < 0, torch.nan)


class UnsureModel(TagModel):
    """Its best token is as before, and sampling often takes another one; it has texts, the numbers of its tokens."""

    def __init__(self, sick=()) -> None:
        super().__init__(sick)
        words = tokenizers.Tokenizer(WordLevel({str(n): n for n in range(VOCAB)}, unk_token="0"))
        self.tokenizer = SimpleNamespace(eos_token_id=EOS, decode=words.decode, backend_tokenizer=words)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden) / 250
