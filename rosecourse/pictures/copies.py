"""Copy-on-write, drawn from the running engine (one table for all layers): who owns which block, and what is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from xml.etree import ElementTree

from ..errors import BlockError, ConfigError
from ..kv.blocks import BlockTable, Copy, KVBlockManager
from .colours import text_on
from .sheet import (
    BOLD,
    CACHED_COLOUR,
    EMPTY,
    FAINT_INK,
    INK,
    MARGIN,
    OWNER_COLOURS,
    TEXT,
    Picture,
    Sheet,
    counted,
    draw_arrow_to,
    draw_shape,
    draw_text,
    fit,
    plain,
    text_width,
)

NUMBER, SLOT, BOX = 34, 32, 24  # a block's number, the width of a slot, the height of a block
PITCH = BOX + 8
ARROWS = 84  # between the blocks that are copied and their copies
MOST_SLOTS = 8
WRONG = "#D55E00"  # the outline of a slot that holds what it should not


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

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for no tables, for more than 8
    slots, for contents that leave out a block or a slot, and for a word that nobody explains.
    """
    if not tables:
        raise ConfigError("tables is empty: give the table of each session")
    if kv.block_size > MOST_SLOTS:
        raise ConfigError(f"blocks have {kv.block_size} slots: at most {MOST_SLOTS} can be drawn")
    for name, table in tables.items():
        if not isinstance(table, BlockTable) or table.freed or table.cache is not kv.ref:
            raise BlockError(f"the table of {plain(name)!r} is not one of this cache: give a live session's table")
    unknown = {word for slots in contents.values() for word in slots} - {"", *tables, *words}
    if unknown:
        raise ConfigError(f"words do not say what {sorted(unknown)} stands for")
    return _Drawing(kv, tables, contents, words, copies, wrong).picture()


class _Drawing:
    """One picture in the making: which block stands where, and what is in it."""

    def __init__(
        self,
        kv: KVBlockManager,
        tables: Mapping[str, BlockTable],
        contents: Mapping[int, Sequence[str]],
        words: Mapping[str, str],
        copies: Sequence[Copy],
        wrong: Sequence[tuple[int, int]],
    ) -> None:
        self.kv, self.contents, self.words, self.copies, self.wrong = kv, contents, words, copies, set(wrong)
        self.names = list(tables)
        blocks = sorted({block for table in tables.values() for block in table} | {copy.source for copy in copies})
        self.owners = {block: [name for name, table in tables.items() if block in table] for block in blocks}
        self.right = [copy.destination for copy in copies]
        self.left = [block for block in blocks if block not in self.right]
        if any(len(contents.get(block, ())) != kv.block_size for block in blocks):
            raise ConfigError(f"contents is to have {kv.block_size} words for each of the blocks {blocks}")
        names = max(ceil(text_width(self._owned(block), TEXT)) for block in blocks)
        self.strip = NUMBER + kv.block_size * SLOT + 8 + names
        self.sheet = Sheet(self.strip + (ARROWS + self.strip if copies else 0))

    def picture(self) -> Picture:
        sheet = self.sheet
        sheet.heading(f"{counted(len(self.names), 'session')}, {counted(len(self.owners), 'block')} in every layer")
        lines = max(len(self.left), len(self.right))
        middles = {
            block: round(sheet.y + (number + 0.5) * lines * PITCH / len(column))
            for column in (self.left, self.right)
            for number, block in enumerate(column)
        }
        for block, middle in middles.items():
            self._block(block, middle, MARGIN + (self.strip + ARROWS if block in self.right else 0))
        for copy in self.copies:
            self._arrow(copy, middles)
        sheet.y += lines * PITCH + 4
        sheet.legend(self._legend())
        return sheet.picture(self._said(), None)

    def _block(self, block: int, middle: int, x: int) -> None:
        """One block: its number, its slots, and its owners."""
        group = draw_shape(self.sheet.root, "g", class_="strip", data_block=block)
        draw_text(group, (x + NUMBER - 6, middle + 4), f"#{block}", weight="bold", anchor="end")
        for slot, word in enumerate(self.contents[block]):
            self._slot(group, (block, slot), word, (x + NUMBER + slot * SLOT, middle - BOX // 2))
        end = x + NUMBER + self.kv.block_size * SLOT + 8
        draw_text(group, (end, middle + 4), self._owned(block), colour=INK if self.owners[block] else FAINT_INK)

    def _slot(self, group: ElementTree.Element, address: tuple[int, int], word: str, at: tuple[int, int]) -> None:
        (x, y), wrong = at, address in self.wrong
        fill = self._colour(word) if word else EMPTY
        line = {"stroke": WRONG, "stroke_width": 3} if wrong else {"stroke": "white", "stroke_width": 2}
        box = {"x": x + wrong, "y": y + wrong, "width": SLOT - 2 * wrong, "height": BOX - 2 * wrong}
        draw_shape(group, "rect", class_="wrong" if wrong else "slot", data_slot=address[1], **box, fill=fill, **line)
        if word:
            middle, text = (x + SLOT / 2, y + BOX / 2 + 4), fit(plain(word), SLOT - 4, TEXT * BOLD)
            draw_text(group, middle, text, colour=text_on(fill), weight="bold", anchor="middle")

    def _arrow(self, copy: Copy, middles: Mapping[int, int]) -> None:
        names = text_width(self._owned(copy.source), TEXT)
        start = (MARGIN + NUMBER + self.kv.block_size * SLOT + names + 16, middles[copy.source])
        group = draw_shape(self.sheet.root, "g", class_="copy", data_from=copy.source, data_to=copy.destination)
        draw_arrow_to(group, start, (MARGIN + self.strip + ARROWS - 4, middles[copy.destination]), INK)

    def _legend(self) -> list[tuple[str, str]]:
        here = {word for block in self.owners for word in self.contents[block] if word}
        sessions = [(self._colour(name), f"{plain(name)}'s token") for name in self.names if name in here]
        others = [(CACHED_COLOUR, f"{word}: {meaning}") for word, meaning in self.words.items() if word in here]
        empty = [(EMPTY, "empty")] if any("" in self.contents[block] for block in self.owners) else []
        copies = [("", "→ to be copied, K and V")] if self.copies else []
        return [*others, *sessions, *empty, *copies, *([(WRONG, "outlined: wrong")] if self.wrong else [])]

    def _owned(self, block: int) -> str:
        owners = self.owners[block]
        return " + ".join(map(plain, owners)) if owners else "nobody's here"

    def _colour(self, word: str) -> str:
        return OWNER_COLOURS[self.names.index(word) % len(OWNER_COLOURS)] if word in self.names else CACHED_COLOUR

    def _said(self) -> str:
        """What a screen reader says."""
        held = [f"block {block} of {self._owned(block)} holds {self._held(block)}" for block in self.owners]
        copied = [f"block {copy.source} is to be copied to block {copy.destination}" for copy in self.copies]
        wrong = [f"slot {slot} of block {block} is wrong" for block, slot in sorted(self.wrong)]
        return "; ".join([*held, *copied, *wrong])

    def _held(self, block: int) -> str:
        return ", ".join(plain(self.words.get(word, word)) or "nothing" for word in self.contents[block])
