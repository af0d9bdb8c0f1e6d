"""The oracle for parts that make block tables: they only read, and the pool itself appends the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .learner import Learner
from .oracle import Oracle
from .pool import Sizes, Tracked
from .row_method import look_at_row_method
from .table_judges import TableJudge, look_at_lists_read


class TableOracle(Oracle):
    """For a part `block_tables`: it is called with the sessions, and returns int32 [L, B, max_blocks]."""

    keeps_rows = True
    enough = None

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        super().__init__(learner, sizes)
        self._judge = TableJudge(self)
        self._shown: dict[tuple[int, int], list[int]] = {}  # (session, layer) -> the list that the part saw last

    # -- steps --------------------------------------------------------------------------------------------------------

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        self.look(*batch)
        return self.append_next_tokens(batch)

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return ([t.session for t in batch],)

    def lists_shown(self, batch: Sequence[Tracked]) -> list[tuple[int, int, list[int]]]:
        places = [(b, layer, (t.number, layer)) for b, t in enumerate(batch) for layer in range(self.sizes.layers)]
        return [(b, layer, self._shown[key]) for b, layer, key in places if key in self._shown]

    def look(self, *batch: Tracked) -> Any:
        """Ask the part for the tables of a batch; returns what it returned, which is right."""
        before = self.before()
        tables = self.call(batch, [t.session for t in batch])
        look_at_lists_read(self, before.lists)
        self.look_at_everything(before, ())
        self._judge.look_at_tables(tables, batch)
        self._shown |= {(t.number, layer): list(ids) for t in batch for layer, ids in enumerate(t.table)}
        return tables

    def look_at_asked_methods(self) -> None:
        session = self.start(self.sizes.block_size + 1)
        self.look(session)
        look_at_row_method(self, self.learner, self.part, session, self._judge.width)

    def look_again(self, tables: Any, *batch: Tracked) -> None:
        """What was returned has to stay as it is until the same part is called again."""
        self._judge.look_at_tables(tables, batch, " (returned earlier by another part, and not right any more)")
