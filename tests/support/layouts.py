"""What the tests ask of a cache, whichever way it keeps its blocks: lists for each layer, or one for all."""

from rosecourse.kv import blocks as one_table
from rosecourse.lessons import l035_blocks as blocks


class PerLayer:
    """Rungs 035 to 061: a list of global block ids for each layer."""

    def __init__(self, kv) -> None:
        self.kv = kv

    def lists(self, table) -> list[list[int]]:
        """For each layer the indices of a session's blocks in the layer's tensors."""
        return [[block_id - layer * self.kv.num_blocks for block_id in ids] for layer, ids in enumerate(table)]

    def info(self, layer: int, block: int):
        return self.kv.info(layer * self.kv.num_blocks + block)

    def available(self, layer: int) -> int:
        return self.kv.num_available(layer)

    def free(self, layer: int) -> list[int]:
        return self.kv.free_blocks(layer)

    def all_free(self) -> list[list[int]]:
        """The lists that blocks are taken from, which may be reordered."""
        return [self.free(layer) for layer in range(self.kv.num_layers)]

    def table(self, row: list[int]):
        """A table of these blocks, the same in each layer, that owns nothing."""
        return blocks.BlockTable(
            [layer * self.kv.num_blocks + block for block in row] for layer in range(self.kv.num_layers)
        )

    def kept(self, entry) -> list[int]:
        """For each layer the block that an entry of the prefix cache keeps."""
        return [block_id - layer * self.kv.num_blocks for layer, block_id in enumerate(entry)]

    def check_filled(self, table, length: int) -> None:
        """The blocks of a table begin where they should, and hold so many tokens together."""
        for ids in table:
            infos = [self.kv.info(block_id) for block_id in ids]
            assert [info.start for info in infos] == list(range(0, length, self.kv.block_size))
            assert sum(info.length for info in infos) == length

    def copy(self, table):
        """A table that says the same and owns nothing."""
        return blocks.BlockTable(list(ids) for ids in table)

    def books(self) -> tuple:
        return self.kv._free_block_indices, self.kv._idle_block_ids, self.kv._block_infos


class OneTable(PerLayer):
    """From 062 on: one list of block indices, the same in every layer."""

    def lists(self, table) -> list[list[int]]:
        return [list(table)] * self.kv.num_layers

    def info(self, layer: int, block: int):
        return self.kv.info(block)

    def available(self, layer: int) -> int:
        return self.kv.num_available()

    def free(self, layer: int) -> list[int]:
        return self.kv.free_blocks()

    def all_free(self) -> list[list[int]]:
        return [self.kv.free_blocks()]

    def table(self, row: list[int]):
        return one_table.BlockTable(row)

    def kept(self, entry) -> list[int]:
        return [entry] * self.kv.num_layers

    def check_filled(self, table, length: int) -> None:
        assert table.num_tokens == length

    def copy(self, table):
        return one_table.BlockTable(table)

    def books(self) -> tuple:
        return self.kv._free_block_indices, self.kv._idle_blocks, self.kv._block_infos


def layout_of(kv) -> PerLayer:
    return OneTable(kv) if isinstance(kv, one_table.KVBlockManager) else PerLayer(kv)
