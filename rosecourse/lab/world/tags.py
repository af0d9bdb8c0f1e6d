"""Numbers that say whose they are: every element of every token's K and V is another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


def letter(session: int) -> str:
    """The name of a session: A, B, C, ..."""
    return chr(ord("A") + session)


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


@dataclass(frozen=True)
class Tags:
    """Numbers the elements of K and V of all tokens, from `first` on, so that a number can be read back.

    The numbers are exact in float32, and would not be after a cast to float16 or bfloat16.
    """

    layers: int
    sessions: int
    heads: int
    positions: int
    head_dim: int
    first: int = 16385

    @property
    def sizes(self) -> tuple[int, ...]:
        return (2, self.layers, self.sessions, self.heads, self.positions, self.head_dim)

    def of(self, sessions: Sequence[int], positions: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """[2, L, N, H, D]: K and V of N tokens, views of a fused projection as those of the model are."""
        numbers = torch.arange(torch.Size(self.sizes).numel()).view(self.sizes) + self.first
        tokens = numbers[:, :, sessions, :, positions].permute(1, 2, 0, 3, 4)  # [N, 2, L, H, D] -> [2, L, N, H, D]
        fused = torch.full((self.layers, len(sessions), 3, self.heads, self.head_dim), -1.0, dtype=dtype)
        fused[:, :, 1:] = tokens.permute(1, 2, 0, 3, 4).to(dtype)
        return fused[:, :, 1:].permute(2, 0, 1, 3, 4)

    def origin(self, number: float) -> Origin | None:
        """What a number was made for, or None for one that is no token's."""
        index = number - self.first
        if not (0 <= index < torch.Size(self.sizes).numel() and index == int(index)):  # NaN is neither
            return None
        places = []
        rest = int(index)
        for size in reversed(self.sizes):
            rest, place = divmod(rest, size)
            places.append(place)
        which, layer, session, head, position, element = reversed(places)
        return Origin(which, layer, session, head, position, element)
