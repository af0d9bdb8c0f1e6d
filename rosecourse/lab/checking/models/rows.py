"""The part `rows` of lesson 064: what the device knows of the running sessions, a row each."""

from typing import Any

import torch
from torch import Tensor

from ....config import SamplingParams
from ....decode.inputs import DecodeInputs
from ....request.draws import key_of
from .. import Wrong, kind_of, must
from ..layout import place_and_copy
from ..pool import Live
from .part_of_a_step import PartOfAStep

OFTEN = 7  # of so many steps the host alone chooses the tokens in one; in another the list of tokens is used again
BY_THE_HOST, LIST_USED_AGAIN = 5, 3


class RowsThatStay(PartOfAStep):
    """A step plans, appends, advances and chooses. Every token is another number; every session samples in its way."""

    part = "rows"
    takes_blocks = shows_blocks = False
    operations = ("say", "broken")
    steps = fails = 0

    def started(self, live: Live, parent: Live | None = None) -> None:
        known = live.session if parent is None else parent.session
        if live.number < 0:
            live.number = self._next("_sessions")
            live.session.params = params_of(live.number)
        self._tell(live, [*known.token_ids[: live.length], *[0] * (live.length - len(known.token_ids)), self._new()])

    def say(self, live: Live) -> str:
        """A user puts another word in the place of a session's last token."""
        self._tell(live, [*live.session.token_ids[:-1], self._new()])
        return f"the last token of {live.name} becomes {live.session.token_ids[-1]}"

    def _new(self) -> int:
        return 100 + self._next("_tokens")

    def _next(self, name: str) -> int:
        setattr(self, name, getattr(self, name, -1) + 1)
        return int(getattr(self, name))

    @staticmethod
    def _tell(live: Live, token_ids: list[int]) -> None:
        live.session.token_ids, live.session.prompt_ids = token_ids, list(token_ids)

    def broken(self, batch: list[Live]) -> str:
        """A step whose forward fails: from here on nobody knows what is on the device."""
        self._plan(batch)
        self.fails += 1
        with self.around():
            if self.fails % 2:  # the interrupt comes behind the forward
                self.made.advance()
            self.made.forget()
        return f"a step of [{', '.join(live.name for live in batch)}] fails in its forward"

    def call(self, batch: list[Live]) -> None:
        self._plan(batch)

    def _plan(self, batch: list[Live]) -> None:
        place_and_copy(self.pool.kv, [live.session.table for live in batch])
        sessions = [live.session for live in batch]
        given = list(sessions)
        with self.around():
            planned = self.made.plan(given)
        if [*map(id, given)] != [*map(id, sessions)]:
            raise Wrong("plan changed the list of sessions that it was given")
        self._look_at_inputs(planned, batch)

    def advance(self, batch: list[Live]) -> None:
        self.append(batch)
        with self.around():
            self.made.advance()
        self.steps += 1
        tokens = [self._new() for _ in batch]
        self._look_at_rows(batch)
        if self.steps % OFTEN != BY_THE_HOST:
            given = list(tokens)
            with self.around():
                self.made.take(torch.tensor(tokens), given)
            if self.steps % OFTEN == LIST_USED_AGAIN:  # its maker goes on with the list, and a user with another word
                given[0] = tokens[0] = self._new()
        for live, token in zip(batch, tokens, strict=True):
            self._tell(live, [*live.session.token_ids, token])

    def _look_at_inputs(self, inputs: Any, batch: list[Live]) -> None:
        if not isinstance(inputs, DecodeInputs):
            raise Wrong(f"plan must return the step's DecodeInputs; returned: {type(inputs).__name__}")
        sessions = [live.session for live in batch]
        if [*map(id, inputs.sessions)] != [*map(id, sessions)]:
            raise Wrong("`sessions` of the inputs must be those of the step, in its order")
        lengths = [live.length for live in batch]
        self._look("token_ids", inputs.token_ids, [one.token_ids[-1] for one in sessions])
        self._look("context_lens", inputs.context_lens, lengths)
        must("max_context_len", max(lengths), inputs.max_context_len)
        self._look_at_tables(inputs.block_tables, batch)

    def _look(self, name: str, found: Any, wanted: list[int]) -> None:
        if not isinstance(found, Tensor) or found.shape != (len(wanted),) or found.dtype != torch.int64:
            raise Wrong(f"`{name}` of the inputs must be an int64 tensor of {len(wanted)}; found: {kind_of(found)}")
        must(f"`{name}` of the inputs", wanted, found.tolist())

    def _look_at_tables(self, tables: Any, batch: list[Live]) -> None:
        layers, most = self.pool.sizes.layers, max(len(live.session.table) for live in batch)
        kind = isinstance(tables, Tensor) and tables.dtype in (torch.int32, torch.int64) and tables.dim() == 3
        if not kind or tables.shape[:2] != (layers, len(batch)) or tables.shape[2] < most or tables.stride(-1) != 1:
            raise Wrong(
                f"`block_tables` must be a tensor [{layers}, {len(batch)}, {most} or more]; found: {kind_of(tables)}"
            )
        for layer in range(layers):
            for row, live in zip(tables[layer].tolist(), batch, strict=True):
                blocks = list(live.session.table)
                must(f"layer {layer}: the blocks in the row of {live.name}", blocks, row[: len(blocks)])

    def _look_at_rows(self, batch: list[Live]) -> None:
        others = [batch[:-1], batch[::-1], [live for live in self.pool.live if live not in batch][:1]]
        for some in (batch, *(some for some in others if some and some != batch)):
            with self.around():
                holds = bool(self.made.holds([live.session for live in some]))
            own, theirs = ([live.name for live in those] for those in (batch, some))
            must(f"the rows are those of {own}: holds({theirs})", some == batch, holds)
        with self.around():
            asked = self.made.asked()
        sampled = [live for live in batch if live.session.params.temperature > 0]
        if (asked is None) != (not sampled):
            raise Wrong(f"{len(sampled)} of {len(batch)} sessions sample; asked() returned {kind_of(asked)}")
        for b, live in enumerate(batch if sampled else []):
            self._look_at_asked(asked, b, live)

    def _look_at_asked(self, asked: Any, b: int, live: Live) -> None:
        params = live.session.params
        wanted = {"temperature": params.temperature}
        if params.temperature > 0:
            wanted |= {"positions": live.length, "top_k": params.top_k, "top_p": params.top_p}
            wanted["keys"] = key_of(params.seed)
        for name, value in wanted.items():
            column: Any = getattr(asked, name, None)
            is_column = isinstance(column, Tensor) and column.dim() == 1 and len(column) > b
            found = column[b].item() if is_column else kind_of(column)
            must(f"{name} of {live.name}, row {b}, in what asked() says", value, found)


def params_of(number: int) -> SamplingParams:
    """What a session asks for; every third is greedy."""
    return SamplingParams(
        temperature=(0.0, 0.7, 1.3)[number % 3],
        top_k=number % 5,
        top_p=(1.0, 0.9, 0.35)[number % 4 % 3],
        seed=7 + number,
    )
