"""The judge of a part's inputs: after a call, the lists and tensors that the part was given are what they were.

Whoever called the part goes on with them: the step counts the sessions of its list, and another part may still read K
and V.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ...request.session import InferenceSession
from .causes import Cause
from .pool import Pool, Tracked, bits
from .telling import fail

REASON = "the caller goes on with its lists and tensors after the call: read them, and work on a copy"
OF_A_SESSION: dict[str, Callable[[InferenceSession], Any]] = {
    "token_ids": lambda session: list(session.token_ids),
    "prompt_ids": lambda session: list(session.prompt_ids),
    "params": lambda session: session.params,
    "finish_reason": lambda session: session.finish_reason,
}


@dataclass(frozen=True)
class _Lent:
    """A tensor that a part was given. now: the part's; then: the same numbers as they were, at the same places."""

    name: str
    now: torch.Tensor
    then: torch.Tensor
    form: tuple[Any, ...]


class Inputs:
    """What a part is given, by the names of its arguments, remembered from before the call.

    batch: the sessions of the step. What is neither a list nor a tensor is not looked at.
    """

    def __init__(self, pool: Pool, batch: Sequence[Tracked], arguments: Mapping[str, Any]) -> None:
        self._pool, self._batch = pool, batch
        self._lists = {name: (given, list(given)) for name, given in arguments.items() if isinstance(given, list)}
        self._sessions = [(t, {name: read(t.session) for name, read in OF_A_SESSION.items()}) for t in batch]
        self._memories: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}  # address -> whose, the numbers, a copy
        named = [(f"{name}[{n}]", x) for name, (_, then) in self._lists.items() for n, x in enumerate(then)]
        named += [(name, given) for name, given in arguments.items()]
        self._tensors = [self._lend(name, x) for name, x in named if isinstance(x, torch.Tensor)]

    def _lend(self, name: str, given: torch.Tensor) -> _Lent:
        at = given.untyped_storage().data_ptr()
        if at not in self._memories:
            self._memories[at] = name, _whole(given), _whole(given).clone()
        then = self._memories[at][2].as_strided(given.shape, given.stride(), given.storage_offset())
        return _Lent(name, given, then, _form(given))

    def look(self) -> None:
        """Raises `PartIsWrong` for the first input that is not what it was."""
        for name, (now, then) in self._lists.items():
            if len(now) != len(then) or any(x is not y for x, y in zip(now, then, strict=True)):
                self._tell(f"the list `{name}`", self._shown(then), self._shown(now))
        for t, was in self._sessions:
            for name, read in OF_A_SESSION.items():
                if read(t.session) != was[name]:
                    self._tell(f"{name} of session {t.name}", _short(was[name]), _short(read(t.session)))
        for lent in self._tensors:
            if _form(lent.now) != lent.form:
                self._tell(f"{lent.name} is another view", str(lent.form[0]), str(_form(lent.now)[0]))
        changed = [one for one in self._memories.values() if not torch.equal(bits(one[1]), bits(one[2]))]
        if changed:
            self._tell_place(*changed[0])

    def _tell_place(self, name: str, memory: torch.Tensor, kept: torch.Tensor) -> NoReturn:
        for lent in self._tensors:
            if not torch.equal(bits(lent.now), bits(lent.then)):
                self._tell_number(lent)
        at = int((bits(memory) != bits(kept)).nonzero()[0])
        self._tell(f"the memory beside the rows of {name}", str(float(kept[at])), str(float(memory[at])))

    def _tell_number(self, lent: _Lent) -> NoReturn:
        at = (bits(lent.now) != bits(lent.then)).nonzero()[0].tolist()
        row = f"row {at[0]}"
        if len(at) == 3 and len(self._batch) == len(lent.now):
            row += f", of session {self._batch[at[0]].name}, head {at[1]}"
        now, then = (x[tuple(at[:-1])].tolist() for x in (lent.now, lent.then))
        self._tell(f"{lent.name}, {row}", _short(then), _short(now))

    def _tell(self, what: str, expected: str, found: str) -> NoReturn:
        fail(
            self._pool,
            Cause.INPUTS_CHANGED,
            f"the part changed its inputs: {what}",
            f"expected: {expected}",
            f"found:    {found}",
            reason=REASON,
        )

    def _shown(self, items: Sequence[Any]) -> str:
        names = {id(t.session): t.name for t in self._batch}
        if all(id(x) in names for x in items) and items:
            return ", ".join(names[id(x)] for x in items)
        if all(isinstance(x, tuple) for x in items):  # copies
            return _short([tuple(x) for x in items])
        return f"{len(items)} items"


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers of the memory that a tensor is a view of, in one row."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.data_ptr()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
