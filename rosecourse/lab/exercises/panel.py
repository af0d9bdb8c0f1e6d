"""A panel to play with the paged cache: controls over a real engine; where widgets do not run, a picture of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, cast

import numpy as np

from ...config import EngineConfig, SamplingParams
from ...engine.engine import InferenceEngine
from ...errors import KVCacheExhausted, RosecourseError
from ...lessons import BASELINE
from ...lessons.l035_blocks import KVBlockManager
from ...models.shape import Model
from ...pages.say import say
from ...pages.shell import watched_shell
from ...pictures.blocks import block_map
from ...pictures.sheet import Picture
from ...request.session import InferenceSession

try:
    import ipywidgets
except ImportError:  # it belongs to the extra `lab`
    ipywidgets = None

MISSING = "The controls need ipywidgets: `pip install ipywidgets`, and restart the kernel. Without them, a picture:"
BLOCK_SIZES = (1, 2, 4, 8, 16)
LONGEST_PROMPT, MOST_BLOCKS = 24, 48
MOST_SESSIONS = 8  # as many as there are colours for
FIRST_TOKEN = 5  # the prompts count up from here: ids that every model of the course has
FULL = "The pool is full: no block is free for this, and nothing has changed. End a session, or take more blocks."


@dataclass(frozen=True)
class Setting:
    """How a playground begins: so many sessions, and a pool of `num_blocks` blocks of `block_size` tokens per layer.

    shortest, longest: tokens of the first session's prompt and of the last one's; the others lie evenly between.
    """

    batch: int = 3
    block_size: int = 4
    shortest: int = 3
    longest: int = 9
    num_blocks: int = 16

    @property
    def lengths(self) -> list[int]:
        """The tokens of each prompt."""
        return np.linspace(self.shortest, self.longest, self.batch).round().astype(int).tolist()


class Playground:
    """An engine of lesson 035, the sessions in it by name, and a picture of layer 0 after each thing that is done.

    Whatever the engine refuses changes nothing, and is said in a sentence.

    sessions: those that hold blocks. picture: the block map; a thick outline marks what the last call has changed.
    said: what came of the last call.
    """

    def __init__(self, model: Model, setting: Setting | None = None) -> None:
        self.setting = Setting() if setting is None else setting
        size, blocks = self.setting.block_size, self.setting.num_blocks
        config = EngineConfig(block_size=size, num_blocks=blocks, max_batch_size=MOST_SESSIONS, prefix_cache=False)
        self.engine = InferenceEngine(model, config, BASELINE)
        self.sessions: dict[str, InferenceSession] = {}
        self.named = 0  # sessions that have had a name
        self.said = self._told_by(self._start)
        self.picture = self._drawn(since=None)

    def step(self) -> None:
        """One decode step of all sessions; those that then have all of their tokens end."""
        self._do(self._step)

    def fork(self, name: str | None) -> None:
        """A second session that goes on from where one is, and shares its blocks. name: of the one; None: of none."""
        self._do(lambda: self._fork(name))

    def end(self, name: str | None) -> None:
        """Give the blocks of a session back."""
        self._do(lambda: self._end(name))

    def _do(self, work: Callable[[], str]) -> None:
        self.said = self._told_by(work)
        self.picture = self._drawn(since=self.picture)

    def _told_by(self, work: Callable[[], str]) -> str:
        """What work says of itself, or what the engine says against it."""
        try:
            return work()
        except KVCacheExhausted:
            return FULL
        except RosecourseError as error:
            message = str(error)
            return f"{message[:1].upper()}{message[1:].removesuffix('.')}."

    def _drawn(self, since: Picture | None) -> Picture:
        tables = {name: session.block_ids_per_layer for name, session in self.sessions.items()}
        return block_map(cast(KVBlockManager, self.engine.kv), tables, since=since)

    def _start(self) -> str:
        most = min(self.engine.max_seq_len, self.setting.num_blocks * self.setting.block_size)
        sessions = []
        for length in self.setting.lengths:
            prompt = list(range(FIRST_TOKEN, FIRST_TOKEN + length))
            params = SamplingParams(max_new_tokens=max(1, most - length), stop_on_eos=False)
            sessions.append(self.engine.new_session(prompt, params))
        logits = self.engine.prefill(sessions)
        self.sessions = {self._name(): session for session in sessions}
        self.engine.take_tokens(sessions, logits)
        return f"{', '.join(self.sessions)}: the prompts are in the cache, and the next step puts one more token there."

    def _step(self) -> str:
        sessions = list(self.sessions.values())
        if not sessions:
            return "No session holds blocks: start again."
        self.engine.take_tokens(sessions, self.engine.decode_step_sessions(sessions))
        done = [name for name, session in self.sessions.items() if session.finished]
        for name in done:
            self._end(name)
        ended = f" {', '.join(done)}: no tokens left to make, so the blocks are given back." if done else ""
        return f"One more token of each session is in the cache.{ended}"

    def _fork(self, name: str | None) -> str:
        if name not in self.sessions:
            return "No such session holds blocks: start again."
        if len(self.sessions) == MOST_SESSIONS:
            return f"{MOST_SESSIONS} sessions are as many as fit into a step here: end one first."
        fork = self.engine.fork(self.sessions[name])
        own = self._name()
        self.sessions[own] = fork
        return f"{own} is a fork of {name} and shares all of its blocks, until one of the two has to write."

    def _end(self, name: str | None) -> str:
        session = self.sessions.pop(name, None) if name is not None else None
        if session is None:
            return "No such session holds blocks: start again."
        self.engine.free(session)
        return f"{name} has ended: what it alone held is free, and what it shared has an owner less."

    def _name(self) -> str:
        """The next letter; after Z, letters with a number."""
        number, letter = divmod(self.named, 26)
        self.named += 1
        return chr(ord("A") + letter) + (str(number) if number else "")


# -- the controls -----------------------------------------------------------------------------------------------------


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
