"""A panel of controls over a playground; where widgets do not run, a picture of what it shows."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from ...models.shape import Model
from ...pages.say import say
from ...pages.shell import watched_shell
from ...pictures.sheet import Picture
from .playground import MOST_SESSIONS, Playground, Setting

try:
    import ipywidgets
except ImportError:  # it belongs to the extra `lab`
    ipywidgets = None

MISSING = "The controls need ipywidgets: `pip install ipywidgets`, and restart the kernel. Without them, a picture:"
BLOCK_SIZES = (1, 2, 4, 8, 16)
LONGEST_PROMPT, MOST_BLOCKS = 24, 48


class Controls:
    """The widgets over a playground. `box` is all of them; a setting that is changed begins a new playground.

    Raises `ImportError` where ipywidgets is not installed.
    """

    def __init__(self, model: Model) -> None:
        if ipywidgets is None:
            raise ImportError(MISSING)
        self.model, first = model, Setting()
        lazy = {"continuous_update": False, "style": {"description_width": "8em"}}
        self.batch = ipywidgets.IntSlider(value=first.batch, min=1, max=MOST_SESSIONS, description="batch", **lazy)
        self.block_size = ipywidgets.SelectionSlider(
            options=BLOCK_SIZES, value=first.block_size, description="block size", **lazy
        )
        self.lengths = ipywidgets.IntRangeSlider(
            value=(first.shortest, first.longest), min=1, max=LONGEST_PROMPT, description="prompt tokens", **lazy
        )
        self.num_blocks = ipywidgets.IntSlider(
            value=first.num_blocks, min=4, max=MOST_BLOCKS, description="blocks in all", **lazy
        )
        narrow, small = ipywidgets.Layout(width="11em"), ipywidgets.Layout(width="auto")
        self.session = ipywidgets.Dropdown(options=[], description="session", layout=narrow)
        self.step, self.fork, self.end, self.again = (
            ipywidgets.Button(description=name, layout=small) for name in ("Step", "Fork it", "End it", "Start again")
        )
        self.said, self.map = ipywidgets.HTML(), ipywidgets.HTML()
        settings = (self.batch, self.block_size, self.lengths, self.num_blocks)
        rows = (settings[:2], settings[2:], (self.step, self.session, self.fork, self.end, self.again))
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        self.box = ipywidgets.VBox([*(ipywidgets.HBox(row, layout=wrap) for row in rows), self.said, self.map])
        for setting in settings:
            setting.observe(lambda change: self.start(), names="value")
        self.again.on_click(lambda button: self.start())
        self.step.on_click(lambda button: self._do(self.ground.step))
        self.fork.on_click(lambda button: self._do(lambda: self.ground.fork(self.session.value)))
        self.end.on_click(lambda button: self._do(lambda: self.ground.end(self.session.value)))
        self.start()

    @property
    def setting(self) -> Setting:
        """What the controls stand at."""
        shortest, longest = self.lengths.value
        return Setting(self.batch.value, self.block_size.value, shortest, longest, self.num_blocks.value)

    def start(self) -> None:
        """A new playground, as the controls stand."""
        self.ground = Playground(self.model, self.setting)
        self._show()

    def _do(self, work: Callable[[], None]) -> None:
        work()
        self._show()

    def _show(self) -> None:
        chosen, names = self.session.value, tuple(self.ground.sessions)
        self.session.options = names
        self.session.value = chosen if chosen in names else next(iter(names), None)
        self.said.value = f'<div role="status">{escape(self.ground.said)}</div>'
        self.map.value = self.ground.picture.svg


class Panel:
    """Displayed in a notebook before which somebody sits it is `Controls`; elsewhere it is `still`.

    A notebook that a program executes so has the same output each time, and a page without Python shows a picture.
    """

    def __init__(self, model: Model) -> None:
        self.still = still(model)
        watched = watched_shell() is not None
        self.controls = Controls(model) if watched and ipywidgets is not None else None
        if watched and ipywidgets is None:
            say(MISSING)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = {"text/plain": repr(self.still), "image/svg+xml": self.still.svg}
        return shown if self.controls is None else shown | _view(self.controls.box)


def _view(widget: Any) -> dict[str, Any]:
    """How a front end finds a widget; one that cannot takes the picture beside it."""
    return {kind: data for kind, data in widget._repr_mimebundle_().items() if kind != "text/plain"}


def still(model: Model) -> Picture:
    """What the panel shows after a step and a fork of B."""
    ground = Playground(model)
    ground.step()
    ground.fork("B")
    return ground.picture
