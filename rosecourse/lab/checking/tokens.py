"""K and V in which no two numbers are equal: every number in a cache tells whose it is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

FIRST = 16385  # as float32: float16 and bfloat16 would round it
PATTERNS = range(1024, 31024)  # bits of 16-bit floats, all of them finite


class Tokens:
    """The tokens of a story. shape: [2 (K and V), L, H, D] of each."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self._made = 0
        self._known: dict[str, Tensor] = {}  # [2, L, H, D] each

    def of(self, wanted: Iterable[tuple[str, int]]) -> Tensor:
        """New K and V, [2, L, N, H, D], of N tokens: (session, position) of each."""
        names = [f"{session}{position}" for session, position in wanted]
        count = torch.Size(self.shape).numel()
        numbers = torch.arange(self._made * count, (self._made + len(names)) * count)
        self._made += len(names)
        if self.dtype.itemsize == 2:
            made = (numbers % len(PATTERNS) + PATTERNS[0]).to(torch.int16).view(self.dtype)
        else:
            made = (numbers + FIRST).to(self.dtype)
        made = made.view(len(names), *self.shape)
        self._known.update(zip(names, made.unbind(), strict=True))
        return made.permute(1, 2, 0, 3, 4)

    def name(self, slot: Tensor, which: int, layer: int) -> str:
        """Whose number fills a slot, [H, D], of K (0) or V (1) in a layer. Only what differs is said: `A3` or
        `V of A3, layer 1`; `.` is empty, `?` is nobody's."""
        if slot.isnan().all():
            return "."
        for name, token in self._known.items():
            for k_or_v in (which, 1 - which):
                for other in range(self.shape[1]):
                    if torch.equal(token[k_or_v, other], slot):
                        kind = "" if k_or_v == which else f"{'KV'[k_or_v]} of "
                        return kind + name + ("" if other == layer else f", layer {other}")
        return self._mixed(slot)

    def _mixed(self, slot: Tensor) -> str:
        """A slot that no token fills as a whole, by its first number."""
        for name, token in self._known.items():
            found = (token == slot.flatten()[0]).nonzero()
            if len(found):
                k_or_v, layer, head, _ = found[0].tolist()
                return f"? (begins with {'KV'[k_or_v]} of {name}, layer {layer}, head {head})"
        return "?"
