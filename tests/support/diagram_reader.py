"""Small engines for the pictures' tests, and the pictures read back from their SVG."""

import re
from xml.etree import ElementTree

from rosecourse import BASELINE, EngineConfig, InferenceEngine, SamplingParams

SVG = "{http://www.w3.org/2000/svg}"
PARAMS = SamplingParams(max_new_tokens=20, stop_on_eos=False)


def make_engine(model, parts=BASELINE, block_size=4, num_blocks=12, prefix_cache=False):
    sizes = {"block_size": block_size, "max_batch_size": 16, "num_blocks": num_blocks, "max_seq_len": 64}
    return InferenceEngine(model, EngineConfig(**sizes, prefix_cache=prefix_cache), parts)


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
    """A cell as it is drawn, read back from the SVG. outline: its colour, where it is thick. colours: of its bar."""

    def __init__(self, group):
        self.kind, *marked = group.get("class").split()
        self.marked = bool(marked)
        self.row, self.column = int(group.get("data-row")), int(group.get("data-column"))
        self.texts = [t.text for t in group.iter(f"{SVG}text")]
        self.text = "\n".join(self.texts)
        rects = list(group.iter(f"{SVG}rect"))
        self.fill = rects[0].get("fill") if rects else None  # a label's is its swatch
        self.outline = rects[0].get("stroke") if self.marked else None
        self.middle = float(rects[0].get("y")) + float(rects[0].get("height")) / 2 if rects else None
        bands = [rect for rect in rects if rect.get("class") == "filled"]
        self.colours = [rect.get("fill") for rect in bands]
        whole = [float(rect.get("width")) for rect in rects if rect.get("class") == "slots"]
        self.filled = float(bands[0].get("width")) / whole[0] if bands else 0.0  # share of the slots
        self.separators = sum(p.get("d").count("M") for p in group.iter(f"{SVG}path") if p.get("class") == "lines")

    @property
    def index(self):
        """The number of the block, of a cell that is one."""
        return int(self.texts[0][1:])


def parse(picture):
    return ElementTree.fromstring(picture.svg)


def texts(picture):
    return [t.text for t in parse(picture).iter(f"{SVG}text")]


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


def marked(picture):
    return {cell.index for cell in cells(picture) if cell.marked}


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


def targets(picture):
    """{(block, slot): (what it says, the colour of its outline)} of the slots with an outline."""
    return {
        (block, slot): (cell.text, cell.outline)
        for block, (_, slots, _) in strips(picture).items()
        for slot, cell in enumerate(slots)
        if cell.marked
    }


def arrows(picture):
    """[(row it starts from, row it points at), ...], by the heights of the rows."""
    drawn = [cell for row in rows_of(picture) for cell in row.values() if cell.kind == "cell"]
    found = []
    for path in parse(picture).iter(f"{SVG}path"):
        if path.get("class") == "arrow":
            _, y0, _, y1 = map(float, re.split("[ L]", path.get("d")[1:]))
            found.append(tuple(min(drawn, key=lambda cell, y=y: abs(cell.middle - y)).row for y in (y0, y1)))
    return found
