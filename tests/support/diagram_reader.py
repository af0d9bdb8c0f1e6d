"""Small engines for the pictures' tests, and the pictures read back from their SVG."""

import re
from functools import cache
from xml.etree import ElementTree

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from rosecourse import BASELINE, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.pictures.sheet import OWNER_COLOURS

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
    """A block as it is drawn, read back from the SVG."""

    def __init__(self, group):
        self.index = int(group.get("data-block"))
        self.marked = group.get("data-marked") == "1"
        self.title = group.find(f"{SVG}title").text
        self.texts = [t.text for t in group.iter(f"{SVG}text")]
        rects = list(group.iter(f"{SVG}rect"))
        self.outline = rects[0]
        self.bands = [r for r in rects if r.get("class") == "filled"]
        self.colours = [r.get("fill") for r in self.bands]
        whole = [float(r.get("width")) for r in rects if r.get("class") == "empty"]
        self.filled = float(self.bands[0].get("width")) / whole[0] if self.bands else 0.0  # share of the slots
        self.separators = sum(p.get("d").count("M") for p in group.iter(f"{SVG}path") if p.get("class") == "slots")


def parse(picture):
    return ElementTree.fromstring(picture.svg)


def cells(picture):
    return [Cell(g) for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "block"]


def entries(picture):
    """{(session, logical block): Cell} of a table map."""
    groups = [g for g in parse(picture).iter(f"{SVG}g") if g.get("class") == "entry"]
    return {(g.get("data-session"), int(g.get("data-logical"))): Cell(g.find(f"{SVG}g")) for g in groups}


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
