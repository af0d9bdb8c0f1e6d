"""How a block table and a position name a slot, drawn from the running engine (one table for all layers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from xml.etree import ElementTree

from ..errors import BlockError, ConfigError
from ..kv.blocks import BlockTable, KVBlockManager
from .sheet import (
    BOLD,
    EMPTY,
    FAINT_INK,
    INK,
    LINE,
    LINE_HEIGHT,
    MARGIN,
    OWNER_COLOURS,
    SLOTS_DRAWN,
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

NAME_WIDTH, ENTRY, ARROWS, NUMBER = 118, 34, 88, 36  # of a session, a table's entry, the arrows, a block's number
STRIP, BOX, MIN_SLOT = 120, 24, 20  # the width of a block's slots, the height of a row, room for a slot's number
PITCH = BOX + 8
ASTRAY = "#D55E00"  # an arrow from an entry that says nothing


@dataclass(frozen=True, slots=True)
class Aim:
    """Where the next token of session `row` goes: slot `slot` of block `block`, which entry `entry` of its row names.

    placed: whether the table has that entry; past its end the device reads 0.
    """

    row: int
    name: str
    position: int
    entry: int
    block: int
    slot: int
    placed: bool


def slots_by_table(kv: KVBlockManager, tables: Mapping[str, BlockTable]) -> Picture:
    """For each session its position, its row of the block tables as the device has it, and an arrow to the slot.

    tables: name -> `session.table`. The entry that the position chooses is outlined; slots that hold a token are
    filled. Past its end a row shows 0: an arrow from there has a colour of its own. Draw it before the step writes:
    after `place` or, to see what it is for, before. Raises `BlockError` for a table that is freed or not of this
    cache, and `ConfigError` for no tables and for blocks of more than 16 slots.
    """
    if not tables:
        raise ConfigError("tables is empty: give the table of each session")
    if kv.block_size > SLOTS_DRAWN:
        raise ConfigError(f"blocks have {kv.block_size} slots: at most {SLOTS_DRAWN} can be drawn")
    for name, table in tables.items():
        if not isinstance(table, BlockTable) or table.freed or table.cache is not kv.ref:
            raise BlockError(f"the table of {plain(name)!r} is not one of this cache: give a live session's table")
    aims = [_aim(kv, row, plain(name), table) for row, (name, table) in enumerate(tables.items())]
    drawing = _Drawing(kv, [plain(name) for name in tables], list(tables.values()), aims)
    return drawing.picture()


def _aim(kv: KVBlockManager, row: int, name: str, table: BlockTable) -> Aim:
    entry, slot = divmod(table.num_tokens, kv.block_size)
    placed = entry < len(table)
    return Aim(row, name, table.num_tokens, entry, table[entry] if placed else 0, slot, placed)


class _Drawing:
    """One picture in the making: where its columns are, and what is in them."""

    def __init__(
        self, kv: KVBlockManager, names: Sequence[str], tables: Sequence[BlockTable], aims: Sequence[Aim]
    ) -> None:
        self.kv, self.names, self.tables, self.aims = kv, names, tables, aims
        self.entries = max(max(map(len, tables)), max(aim.entry for aim in aims) + 1)
        self.blocks = sorted({block for table in tables for block in table} | {aim.block for aim in aims})
        self.owners = {block: [row for row, table in enumerate(tables) if block in table] for block in self.blocks}
        self.slot = max(STRIP // kv.block_size, MIN_SLOT)
        self.strip_left = MARGIN + NAME_WIDTH + self.entries * ENTRY + ARROWS + NUMBER
        widest = max(ceil(text_width(self._owned(block), TEXT)) + 10 for block in self.blocks)
        self.sheet = Sheet(self.strip_left - MARGIN + kv.block_size * self.slot + max(widest, 60))

    def picture(self) -> Picture:
        sheet, lines = self.sheet, max(len(self.blocks), len(self.aims))
        sheet.heading(f"{counted(len(self.aims), 'session')}, blocks of {self.kv.block_size} slots, every layer")
        self._headings()
        middle = {
            block: sheet.y + round((n + 0.5) * lines * PITCH / len(self.blocks)) for n, block in enumerate(self.blocks)
        }
        for block in self.blocks:
            self._strip(block, middle[block])
        for aim in self.aims:
            self._row(aim, sheet.y + round((aim.row + 0.5) * lines * PITCH / len(self.aims)), middle[aim.block])
        sheet.y += lines * PITCH + 4
        astray = [(ASTRAY, "no block placed: 0 is read")] if not all(aim.placed for aim in self.aims) else []
        sheet.legend([(FAINT_INK, "holds a token"), ("outline", "chosen by the position"), *astray])
        return sheet.picture("; ".join(map(self._said, self.aims)), None)

    def _headings(self) -> None:
        baseline = self.sheet.y + TEXT
        for x, said, anchor in (
            (MARGIN, "position", "start"),
            (MARGIN + NAME_WIDTH, "row of the table", "start"),
            (self.strip_left - 6, "block, slot", "end"),
        ):
            draw_text(self.sheet.root, (x, baseline), said, colour=FAINT_INK, anchor=anchor)
        for slot in range(self.kv.block_size):
            at = (self.strip_left + (slot + 0.5) * self.slot, baseline)
            draw_text(self.sheet.root, at, str(slot), anchor="middle")
        self.sheet.y += LINE_HEIGHT + 4

    def _row(self, aim: Aim, middle: int, target: int) -> None:
        """A session: its name and position, its entries, and the arrow from the one that the position chooses."""
        group = draw_shape(self.sheet.root, "g", class_="row", data_row=aim.row, data_placed=int(aim.placed))
        colour = self._colour(aim.row)
        draw_shape(group, "rect", x=MARGIN, y=middle - BOX // 2, width=8, height=BOX, fill=colour)
        told = fit(f"{aim.name}: {aim.position}", NAME_WIDTH - 22, (TEXT + 1) * BOLD)
        draw_text(group, (MARGIN + 14, middle + 4), told, size=TEXT + 1, weight="bold")
        table = self.tables[aim.row]
        for entry in range(self.entries):
            chosen, there = entry == aim.entry, entry < len(table)
            x = MARGIN + NAME_WIDTH + entry * ENTRY
            line = {"stroke": INK if aim.placed else ASTRAY, "stroke_width": 3} if chosen else {"stroke": LINE}
            box = {"x": x + 2, "y": middle - BOX // 2 + 1, "width": ENTRY - 4, "height": BOX - 2}
            kind = "chosen" if chosen else "entry"
            draw_shape(group, "rect", class_=kind, data_entry=entry, **box, fill="white" if there else EMPTY, **line)
            ink, weight = (INK if there or chosen else FAINT_INK), ("bold" if chosen else "normal")
            number = str(table[entry] if there else 0)
            draw_text(group, (x + ENTRY / 2, middle + 4), number, colour=ink, weight=weight, anchor="middle")
        self._arrow(group, aim, middle, target)

    def _arrow(self, group: ElementTree.Element, aim: Aim, middle: int, target: int) -> None:
        """Over the later entries to the end of the row, then to the block: no arrow crosses an entry's number."""
        colour = INK if aim.placed else ASTRAY
        end = MARGIN + NAME_WIDTH + self.entries * ENTRY
        if aim.entry + 1 == self.entries:
            draw_arrow_to(group, (end, middle), self._tip(target), colour)
            return
        x, top = MARGIN + NAME_WIDTH + aim.entry * ENTRY + ENTRY // 2, middle - BOX // 2
        path = f"M{x} {top}v-3H{end + 6}V{middle}"
        draw_shape(group, "path", class_="level", d=path, stroke=colour, stroke_width=1.5, fill="none")
        draw_arrow_to(group, (end + 6, middle), self._tip(target), colour)

    def _tip(self, target: int) -> tuple[float, float]:
        return self.strip_left - NUMBER - 4, target

    def _strip(self, block: int, middle: int) -> None:
        """One block: its number, its slots, and whose it is."""
        group = draw_shape(self.sheet.root, "g", class_="strip", data_block=block, data_filled=self._filled(block))
        draw_text(group, (self.strip_left - 6, middle + 4), f"#{block}", weight="bold", anchor="end")
        rows, top = self.owners[block], middle - BOX // 2
        for slot in range(self.kv.block_size):
            filled = slot < self._filled(block)
            at = {"x": self.strip_left + slot * self.slot, "y": top, "width": self.slot, "height": BOX}
            fill = self._colour(rows[0]) if filled else EMPTY
            draw_shape(group, "rect", class_="slot", **at, fill=fill, stroke="white", stroke_width=2)
        for aim in (aim for aim in self.aims if aim.block == block):
            x = self.strip_left + aim.slot * self.slot
            at = {"x": x + 2, "y": top + 1, "width": self.slot - 4, "height": BOX - 2}
            line = {"stroke": INK if aim.placed else ASTRAY, "stroke_width": 3}
            draw_shape(group, "rect", class_="target", data_slot=aim.slot, data_row=aim.row, **at, fill="white", **line)
        for slot in sorted({aim.slot for aim in self.aims if aim.block == block}):
            names = [aim.name for aim in self.aims if (aim.block, aim.slot) == (block, slot)]
            at_middle = (self.strip_left + (slot + 0.5) * self.slot, middle + 4)
            said = fit(names[0], self.slot - 4, TEXT * BOLD) if len(names) == 1 else f"×{len(names)}"
            draw_text(group, at_middle, said, weight="bold", anchor="middle")
        right = self.strip_left + self.kv.block_size * self.slot
        draw_text(group, (right + 8, middle + 4), self._owned(block), colour=INK if rows else FAINT_INK)

    def _filled(self, block: int) -> int:
        """Tokens that the sessions of the picture have in a block."""
        size = self.kv.block_size
        held = (
            min(self.tables[row].num_tokens - self.tables[row].index(block) * size, size) for row in self.owners[block]
        )
        return max(held, default=0)

    def _owned(self, block: int) -> str:
        return ", ".join(self.names[row] for row in self.owners[block]) or "another's"

    def _colour(self, row: int) -> str:
        return OWNER_COLOURS[row % len(OWNER_COLOURS)]

    def _said(self, aim: Aim) -> str:
        past = "" if aim.placed else ", past the end of its table"
        return (
            f"{aim.name} at position {aim.position} reads entry {aim.entry}{past}: slot {aim.slot} of block {aim.block}"
        )
