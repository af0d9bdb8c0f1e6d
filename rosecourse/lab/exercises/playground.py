"""The paged cache to play with: a real engine whose sessions are started, stepped, forked and ended by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from ...config import EngineConfig, SamplingParams
from ...engine.engine import InferenceEngine
from ...errors import KVCacheExhausted, RosecourseError
from ...lessons import BASELINE
from ...lessons.l035_blocks import KVBlockManager
from ...models.shape import Model
from ...pictures.blocks import block_map
from ...pictures.sheet import Picture
from ...request.session import InferenceSession

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
