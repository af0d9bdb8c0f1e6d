"""A panel to play with the paged cache: buttons over a real engine; where widgets do not run, a picture of it."""

from collections.abc import Callable
from html import escape
from itertools import count
from typing import Any, cast

from ...config import EngineConfig, SamplingParams
from ...engine.engine import InferenceEngine
from ...errors import KVCacheExhausted
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
BLOCK_SIZE, NUM_BLOCKS, LENGTHS = 4, 16, (3, 6, 9)
MOST_SESSIONS = 8  # as many as there are colours for
FIRST_TOKEN = 5  # the prompts count up from here: ids that every model of the course has
FULL = "The pool is full: no block is free for this, and nothing has changed. End a session, or start again."
EMPTY = "No session holds blocks: start again."


class Playground:
    """An engine of lesson 035, the sessions in it by name, and a picture of layer 0 after each thing that is done.

    picture: the block map; a thick outline marks what the last call of `do` has changed. said: what came of it.
    """

    def __init__(self, model: Model) -> None:
        config = EngineConfig(
            block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_batch_size=MOST_SESSIONS, prefix_cache=False
        )
        self.engine = InferenceEngine(model, config, BASELINE)
        self.names = (chr(ord("A") + n % 26) + (str(n // 26) if n >= 26 else "") for n in count())
        self.sessions: dict[str, InferenceSession] = {}
        for length in LENGTHS:
            params = SamplingParams(max_new_tokens=NUM_BLOCKS * BLOCK_SIZE - length, stop_on_eos=False)
            session = self.engine.new_session([*range(FIRST_TOKEN, FIRST_TOKEN + length)], params)
            self.sessions[next(self.names)] = session
        live = [*self.sessions.values()]
        self.engine.take_tokens(live, self.engine.prefill(live))
        self.said = "The prompts are in the cache, and the next step puts one more token of each session there."
        self.picture = self._drawn()

    def do(self, work: Callable[..., str], *args: str) -> None:
        """Call `step`, `fork` or `end`, and draw; what the engine refuses changes nothing."""
        try:
            self.said = work(*args) if self.sessions else EMPTY
        except KVCacheExhausted:
            self.said = FULL
        self.picture = self._drawn(since=self.picture)

    def _drawn(self, since: Picture | None = None) -> Picture:
        tables = {name: session.block_ids_per_layer for name, session in self.sessions.items()}
        return block_map(cast(KVBlockManager, self.engine.kv), tables, since=since)

    def step(self) -> str:
        """One decode step of all sessions; those that then have all of their tokens end."""
        sessions = list(self.sessions.values())
        self.engine.take_tokens(sessions, self.engine.decode_step_sessions(sessions))
        done = [name for name, session in self.sessions.items() if session.finished]
        for name in done:
            self.end(name)
        ended = f" {', '.join(done)}: no tokens left to make, so the blocks are given back." if done else ""
        return f"One more token of each session is in the cache.{ended}"

    def fork(self, name: str) -> str:
        """A second session that goes on from where one is, and shares its blocks."""
        if len(self.sessions) == MOST_SESSIONS:
            return f"{MOST_SESSIONS} sessions are as many as fit into a step here: end one first."
        fork, own = self.engine.fork(self.sessions[name]), next(self.names)
        self.sessions[own] = fork
        return f"{own} is a fork of {name} and shares all of its blocks, until one of the two has to write."

    def end(self, name: str) -> str:
        self.engine.free(self.sessions.pop(name))
        return f"{name} has ended: what it alone held is free, and what it shared has an owner less."


class Controls:
    """The widgets over a playground. `box` is all of them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.session = ipywidgets.Dropdown(description="session", layout=ipywidgets.Layout(width="11em"))
        self.step = _button("Step", lambda: self._do(self.ground.step))
        self.fork = _button("Fork it", lambda: self._do(self.ground.fork, self.session.value))
        self.end = _button("End it", lambda: self._do(self.ground.end, self.session.value))
        self.again = _button("Start again", self.start)
        self.said, self.map = ipywidgets.HTML(), ipywidgets.HTML()
        buttons = (self.step, self.session, self.fork, self.end, self.again)
        row = ipywidgets.HBox(buttons, layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.box = ipywidgets.VBox([row, self.said, self.map])
        self.start()

    def start(self) -> None:
        self.ground = Playground(self.model)
        self._show()

    def _do(self, work: Callable[..., str], *args: str) -> None:
        self.ground.do(work, *args)
        self._show()

    def _show(self) -> None:
        chosen, names = self.session.value, tuple(self.ground.sessions)
        self.session.options = names
        self.session.value = chosen if chosen in names else next(iter(names), None)
        self.said.value = f'<div role="status">{escape(self.ground.said)}</div>'
        self.map.value = self.ground.picture.svg


def _button(name: str, clicked: Callable[[], None]) -> Any:
    button = ipywidgets.Button(description=name, layout=ipywidgets.Layout(width="auto"))
    button.on_click(lambda button: clicked())
    return button


class Panel:
    """Displayed in a notebook before which somebody sits it is `Controls`; elsewhere it is the picture `still`.

    A notebook that a program executes so has the same output each time, and a page without Python shows a picture.
    """

    def __init__(self, model: Model) -> None:
        ground = Playground(model)
        ground.do(ground.step)
        ground.do(ground.fork, "B")
        self.still, self.controls = ground.picture, None
        if watched_shell() is not None:
            if ipywidgets is None:
                say(MISSING)
            else:
                self.controls = Controls(model)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = {"text/plain": repr(self.still), "image/svg+xml": self.still.svg}
        if self.controls is not None:  # a front end that shows no widgets takes the picture
            widget = self.controls.box._repr_mimebundle_()
            shown |= {kind: data for kind, data in widget.items() if kind != "text/plain"}
        return shown
