"""The paged KV cache of a step that runs over more rows than sessions."""

from __future__ import annotations

from . import one_table


class KVBlockManager(one_table.KVBlockManager):
    """The same with one block more, number `num_blocks`, that the books do not know: pads of a batch write into it."""

    spare_blocks = 1
