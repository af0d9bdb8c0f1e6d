"""Copy-on-write, drawn from the running engine (one table for all layers): who owns which block, and what is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from ..checks import require
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from .grid import APART, Arrow, Cell, Grid, draw_grids, label
from .sheet import EMPTY, OWNER_COLOURS, SHARED, WRONG, Picture, counted, plain
from .slots import live_tables

MOST_SLOTS = 8


def blocks_and_copies(
    kv: KVBlockManager,
    tables: Mapping[str, BlockTable],
    contents: Mapping[int, Sequence[str]],
    words: Mapping[str, str],
    copies: Sequence[Copy] = (),
    wrong: Sequence[tuple[int, int]] = (),
) -> Picture:
    """The blocks of some sessions with their owners; copies stand on the right, an arrow from the block to each.

    tables: name -> `session.table`. contents: block -> a word for each slot: the name of the session whose token it
    holds, in that session's colour; a short word of `words`, in grey; or nothing for an empty slot. words: what each of
    these short words stands for. copies: what `place` has returned. wrong: (block, slot) of the slots to outline.

    Raises what `live_tables` raises, and `ConfigError` for contents that leave out a block or a slot, and for a word
    that nobody explains.
    """
    live_tables(kv, tables, MOST_SLOTS)
    unknown = {word for slots in contents.values() for word in slots} - {"", *tables, *words}
    require(not unknown, f"words do not say what {sorted(unknown)} stands for")
    blocks = sorted({block for table in tables.values() for block in table} | {copy.source for copy in copies})
    whole = all(len(contents.get(block, ())) == kv.block_size for block in blocks)
    require(whole, f"contents is to have {kv.block_size} words for each of the blocks {blocks}")
    fills = {name: OWNER_COLOURS[n % len(OWNER_COLOURS)] for n, name in enumerate(tables)} | {"": EMPTY}
    owners = {block: _owners(block, tables) for block in blocks}

    def strip(block: int) -> list[Cell]:
        cells = [
            Cell(plain(word), fills.get(word, SHARED), WRONG if (block, slot) in wrong else "")
            for slot, word in enumerate(contents[block])
        ]
        return [label(f"#{block}"), *cells, label(owners[block])]

    right = [copy.destination for copy in copies]
    left = [block for block in blocks if block not in right]
    rows: list[list[Cell | None]] = []
    for source, destination in zip_longest(left, right):
        beside = [] if destination is None else [APART, *strip(destination)]
        rows.append([*(strip(source) if source is not None else [None] * (kv.block_size + 2)), *beside])
    ends = (kv.block_size + 1, kv.block_size + 3)
    arrows = [Arrow((left.index(copy.source), ends[0]), (row, ends[1])) for row, copy in enumerate(copies)]

    here = {word for block in blocks for word in contents[block]}
    legend = [(SHARED, f"{word}: {plain(said)}") for word, said in words.items() if word in here]
    legend += [(fills[name], f"{plain(name)}'s token") for name in tables if name in here]
    legend += [(EMPTY, "empty")] if "" in here else []
    legend += [("", "→ to be copied, K and V")] if copies else []
    legend += [(WRONG, "outlined: wrong")] if wrong else []
    said = [f"block {block} of {owners[block]} holds {_held(contents[block], words)}" for block in blocks]
    said += [f"block {copy.source} is to be copied to block {copy.destination}" for copy in copies]
    said += [f"slot {slot} of block {block} is wrong" for block, slot in sorted(wrong)]
    heading = f"{counted(len(tables), 'session')}, {counted(len(blocks), 'block')} in every layer"
    return draw_grids(heading, [Grid(rows, arrows)], legend, "; ".join(said))


def _owners(block: int, tables: Mapping[str, BlockTable]) -> str:
    return " + ".join(plain(name) for name, table in tables.items() if block in table) or "nobody's here"


def _held(slots: Sequence[str], words: Mapping[str, str]) -> str:
    return ", ".join(plain(words.get(word, word)) or "nothing" for word in slots)
