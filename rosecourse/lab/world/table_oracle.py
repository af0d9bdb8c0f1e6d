"""The oracle for parts that make block tables: they only read, and the pool itself appends the tokens.

It can also bring about what happens to an engine by chance: a session on blocks, or at an address, that another had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...config import SamplingParams
from ...kv.blocks import BlockTable
from ...request.session import InferenceSession
from .learner import Learner
from .oracle import Oracle
from .pool import Sizes, Tracked
from .table_judges import TableJudge, look_at_lists_read


class TableOracle(Oracle):
    """For a part `block_tables`: it is called with the sessions, and returns int32 [L, B, max_blocks]."""

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
        tables = self.learner.call(self.part, [t.session for t in batch])
        look_at_lists_read(self, before.lists)
        self.look_at_everything(before, ())
        self._judge.look_at_tables(tables, batch)
        self._shown |= {(t.number, layer): list(ids) for t in batch for layer, ids in enumerate(t.table)}
        return tables

    def look_again(self, tables: Any, *batch: Tracked) -> None:
        """What was returned has to stay as it is until the same part is called again."""
        self._judge.look_at_tables(tables, batch, " (returned earlier by another part, and not right any more)")

    # -- what happens by chance ---------------------------------------------------------------------------------------

    def next_blocks(self, *indices: int) -> None:
        """Let these free blocks be the next that each layer takes, in this order."""
        for layer in range(self.sizes.layers):
            free = self.kv.free_blocks(layer)
            free[:] = [index for index in free if index not in indices] + list(reversed(indices))

    def resize(self, tracked: Tracked, length: int) -> None:
        """A session that holds no blocks has another number of tokens when it is computed again."""
        numbers = [tracked.number] * length, list(range(length)), self.sizes.dtype
        tracked.dense, tracked.session.num_cached_tokens = self.tags.of(*numbers), length

    def free_and_reuse(self, tracked: Tracked) -> InferenceSession:
        """The session goes, and another is made at its place in memory, as Python does by chance: `id` is the same.

        So are those of its table and of its lists, which show nothing yet. If somebody still holds the old ones, the
        new ones lie elsewhere.
        """
        at_session, at_table, prompt, params = id(tracked.session), id(tracked.table), [1], SamplingParams()
        at_lists = [id(ids) for ids in tracked.table]
        self.free(tracked)
        table = _made_at(at_table, BlockTable)
        table.extend(_made_at(address, list) for address in at_lists)
        del tracked.session  # the last reference to it
        session = _made_at(at_session, lambda: InferenceSession(prompt, params))
        session.table = table
        return session

    def start_in(self, session: InferenceSession, length: int) -> Tracked:
        """A session that has been made before gets the blocks of `length` tokens."""
        tracked = self.start(length)
        for ids, taken in zip(session.block_ids_per_layer, tracked.table, strict=True):
            ids += taken
        session.num_cached_tokens = length
        session.prompt_ids, session.token_ids = tracked.session.prompt_ids, tracked.session.token_ids
        tracked.session = session
        return tracked


def _made_at(address: int, make: Callable[[], Any]) -> Any:
    """An object at an address in memory that has just become free; after some attempts, one that lies elsewhere."""
    made = [make()]
    while id(made[-1]) != address and len(made) < 1000:
        made.append(make())
    return made[-1]
