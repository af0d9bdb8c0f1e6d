"""Numbers that say whose they are: every element of every token's K and V is another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SMALLEST = {torch.float16: 0x0400, torch.bfloat16: 0x0080}  # the bits of the least number that is not subnormal
LARGEST = {torch.float16: 0x7BFF, torch.bfloat16: 0x7F7F}  # and those of the greatest
FIRST = 16385  # where numbers have 32 bits
LAST = 2**24  # up to which float32 holds whole numbers


def letter(session: int) -> str:
    """The name of a session: A, B, ..., Z, AA, AB, ..."""
    before, last = divmod(session, 26)
    return (letter(before - 1) if before else "") + chr(ord("A") + last)


AROUND = -1.0  # in memory around the rows of K and V that a part is given; no token has it


@dataclass(frozen=True)
class Origin:
    """What a number was made for."""

    which: int  # 0: K, 1: V
    layer: int
    session: int
    head: int
    position: int
    element: int

    def __str__(self) -> str:
        return f"{'KV'[self.which]} of session {letter(self.session)}, layer {self.layer}, {self.place}"

    @property
    def place(self) -> str:
        return f"head {self.head}, position {self.position}"


class Tags:
    """Numbers the elements of K and V of all tokens, in the order in which tokens come up, so that a number can be read
    back.

    In float32 they are whole numbers from `FIRST` on, which would not survive a cast to float16 or bfloat16. A type of
    16 bits has too few whole numbers: there each element has other bits.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.shape = (2, layers, heads, head_dim)  # of one token
        self.dtype = dtype
        self.first, last = SMALLEST.get(dtype, FIRST), LARGEST.get(dtype, LAST)
        self.most = (last - self.first + 1) // self._per_token  # tokens
        self._numbers: dict[tuple[int, int], int] = {}  # (session, position) -> which token it is
        self._tokens: list[tuple[int, int]] = []  # the same the other way round

    @property
    def _per_token(self) -> int:
        return torch.Size(self.shape).numel()

    def of(self, sessions: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """[2, L, N, H, D]: K and V of N tokens. Raises `ValueError` when there are more tokens than numbers."""
        tokens = [self._number(token) for token in zip(sessions, positions, strict=True)]
        starts = torch.tensor(tokens, dtype=torch.int64) * self._per_token + self.first
        numbers = torch.arange(self._per_token).view(self.shape).unsqueeze(2) + starts.view(-1, 1, 1)
        if self.dtype in SMALLEST:
            return numbers.to(torch.int16).view(self.dtype)
        return numbers.to(self.dtype)

    def _number(self, token: tuple[int, int]) -> int:
        if token not in self._numbers:
            if len(self._tokens) == self.most:
                raise ValueError(f"{self.dtype} has no numbers for more than {self.most} tokens of {self.shape}")
            self._numbers[token] = len(self._tokens)
            self._tokens.append(token)
        return self._numbers[token]

    def origin(self, number: float) -> Origin | None:
        """What a number was made for, or None for one that is no token's."""
        if self.dtype in SMALLEST:
            index = float(torch.tensor(number, dtype=self.dtype).view(torch.int16)) - self.first
        else:
            index = number - self.first
        if not (0 <= index < len(self._tokens) * self._per_token and index == int(index)):  # NaN is neither
            return None
        token, rest = divmod(int(index), self._per_token)
        places = []
        for size in reversed(self.shape):
            rest, place = divmod(rest, size)
            places.append(place)
        which, layer, head, element = reversed(places)
        session, position = self._tokens[token]
        return Origin(which, layer, session, head, position, element)
