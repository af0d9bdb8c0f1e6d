"""Small engines for the pictures' tests, and the pictures read back from their SVG."""

import re
from functools import cache
from xml.etree import ElementTree

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from rosecourse import BASELINE, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.pictures.colours import OWNER_COLOURS

SVG = "{http://www.w3.org/2000/svg}"
PARAMS = SamplingParams(max_new_tokens=20, stop_on_eos=False)
BLUE, ORANGE = OWNER_COLOURS[:2]


def make_engine(model, block_size=4, num_blocks=12, prefix_cache=False):
    config = EngineConfig(
        block_size=block_size, max_batch_size=16, num_blocks=num_blocks, max_seq_len=64, prefix_cache=prefix_cache
    )
    return InferenceEngine(model, config, BASELINE)


def start(engine, num_tokens, first=1):
    """A session whose prompt of `num_tokens` tokens is in the cache."""
    session = engine.new_session(range(first, first + num_tokens), PARAMS)
    engine.take_tokens([session], engine.prefill([session]))
    return session


def step(engine, *sessions):
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


def tables(**sessions):
    return {name: session.block_ids_per_layer for name, session in sessions.items()}


class Cell:
    """A cell as it is drawn, read back from the SVG. outline: its colour, where it is thick. bands: of its bar."""

    def __init__(self, group):
        self.kind, *marked = group.get("class").split()
        self.marked = bool(marked)
        self.row, self.column = int(group.get("data-row")), int(group.get("data-column"))
        self.texts = [t.text for t in group.iter(f"{SVG}text")]
        self.text = "\n".join(self.texts)
        rects = list(group.iter(f"{SVG}rect"))
        self.fill = rects[0].get("fill") if rects else None  # a label's is its swatch
        self.outline = rects[0].get("stroke") if self.marked else None
        self.bands = [rect for rect in rects if rect.get("class") == "filled"]
        self.colours = [rect.get("fill") for rect in self.bands]
        whole = [float(rect.get("width")) for rect in rects if rect.get("class") == "slots"]
        self.filled = float(self.bands[0].get("width")) / whole[0] if self.bands else 0.0  # share of the slots
        self.separators = sum(p.get("d").count("M") for p in group.iter(f"{SVG}path") if p.get("class") == "lines")

    @property
    def index(self):
        """The number of the block, of a cell that is one."""
        return int(self.texts[0][1:])


def parse(picture):
    return ElementTree.fromstring(picture.svg)


def grids(picture):
    """The rows of each grid: {column: Cell}."""
    found = []
    for grid in (g for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "grid"):
        rows = {}
        for cell in map(Cell, grid.findall(f"{SVG}g")):
            rows.setdefault(cell.row, {})[cell.column] = cell
        found.append([rows[row] for row in sorted(rows)])
    return found


def rows_of(picture):
    """The rows of the only grid."""
    (rows,) = grids(picture)
    return rows


def cells(picture):
    """The blocks of a block map or a table map."""
    every = (cell for rows in grids(picture) for row in rows for cell in row.values())
    return [cell for cell in every if re.match(r"#\d+\n", cell.text)]


def entries(picture):
    """{(session, logical block): Cell} of a table map."""
    found, session = {}, None
    for heads, *rows in grids(picture):
        if not rows:
            session = heads[0].text.rpartition(": ")[0]
        for row in rows:
            found |= {(session, int(heads[column].text.split()[1])): cell for column, cell in row.items()}
    return found


def strips(picture):
    """{block: (the row that it is in, its slots, what is said after them)} of pictures with a strip for each block."""
    found = {}
    for row in rows_of(picture):
        cells = list(row.values())
        for number, cell in enumerate(cells):
            if cell.kind == "label" and re.fullmatch(r"#\d+", cell.text):
                end = next(n for n in range(number + 1, len(cells)) if cells[n].kind == "label")
                found[int(cell.text[1:])] = (cell.row, cells[number + 1 : end], cells[end].text)
    return found


def arrows(picture):
    """[(row it starts from, row it points at), ...], by the heights of the rows."""
    (grid,) = [g for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "grid"]
    centres = {}
    for group in grid.findall(f"{SVG}g"):
        for what, _, top, _, bottom in boxes(group):
            if what == "rect" and group.get("class") != "label":
                centres[int(group.get("data-row"))] = (top + bottom) / 2
    found = []
    for path in grid.iter(f"{SVG}path"):
        if path.get("class") == "arrow":
            _, y0, _, y1 = map(float, re.split("[ L]", path.get("d")[1:]))
            row = [min(centres, key=lambda row, y=y: abs(centres[row] - y)) for y in (y0, y1)]
            found.append(tuple(row))
    return found


def texts(picture):
    return [t.text for t in parse(picture).iter(f"{SVG}text")]


def marked(picture):
    return {cell.index for cell in cells(picture) if cell.marked}


@cache
def text_width(text, size, weight="normal"):
    """In DejaVu Sans, which matplotlib brings along: one of the widest fonts that a browser may choose."""
    return TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans", weight=weight)).get_extents().x1


def boxes(element, dx=0.0, dy=0.0):
    """(what, left, top, right, bottom) of each text and rectangle, in the coordinates of the whole picture."""
    for child in element:
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", child.get("transform", ""))
        x, y = (float(child.get(key, 0)) for key in ("x", "y"))
        if child.tag == f"{SVG}text":
            size = int(child.get("font-size"))
            width = text_width(child.text, size, child.get("font-weight", "normal"))
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[child.get("text-anchor", "start")]
            yield child.text, left + dx, y - size + dy, left + width + dx, y + 0.3 * size + dy
        elif child.tag == f"{SVG}rect":
            yield "rect", x + dx, y + dy, x + float(child.get("width")) + dx, y + float(child.get("height")) + dy
        yield from boxes(child, *((dx + float(moved[1]), dy + float(moved[2])) if moved else (dx, dy)))
