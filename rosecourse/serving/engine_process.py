"""The engine process: it reads requests, steps a scheduler, and sends the tokens of each step in one message."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from ..engine.engine import InferenceEngine
from ..engine.scheduler import NewToken, OnlineScheduler
from ..errors import RosecourseError
from ..request.session import InferenceSession
from .messages import Cancel, Ready, Step, Submit

NAN = "the model gave NaN or infinite logits"


def run_engine(make_engine: Callable[[], InferenceEngine], pipe: Connection) -> None:
    """The work of the process, until the server closes its end. A bad setting is sent as a text in place of `Ready`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server says when to end
    try:
        engine = make_engine()
    except RosecourseError as error:
        pipe.send(str(error))
        return
    gc.freeze()  # so that a full collection does not look at the objects of torch
    pipe.send(Ready(engine.model.name, engine.model.tokenizer, engine.max_seq_len, engine.kv.num_blocks))
    with suppress(EOFError, BrokenPipeError):
        EngineLoop(engine, pipe).run()


class EngineLoop:
    """A scheduler between two queues: commands come in, new tokens go out."""

    def __init__(self, engine: InferenceEngine, pipe: Connection) -> None:
        self.engine, self.pipe, self.scheduler = engine, pipe, OnlineScheduler(engine)
        self.numbers: dict[InferenceSession, int] = {}  # of the requests that have not ended
        self.errors: list[tuple[int, int, str]] = []  # since the last message

    def run(self) -> None:
        """Raises `EOFError` when the server has closed its end."""
        while True:
            idle = not self.scheduler.has_work
            while self.pipe.poll(None if idle else 0):
                self.obey(self.pipe.recv())
                idle = False
            new_tokens = self.scheduler.step()
            self.pipe.send(self.message(new_tokens))

    def obey(self, command: Submit | Cancel) -> None:
        if isinstance(command, Submit):
            try:
                session = self.engine.new_session(command.prompt_ids, command.params)
                self.scheduler.submit(session)
                self.numbers[session] = command.number
            except RosecourseError as error:
                self.errors.append((command.number, 400, str(error)))
        else:  # there is no such session if it has ended
            for session in [one for one, number in self.numbers.items() if number == command.number]:
                self.scheduler.cancel(session)
                del self.numbers[session]

    def message(self, new_tokens: list[NewToken]) -> Step:
        """What the server is told after a step."""
        last = {session: place for place, (session, _) in enumerate(new_tokens)}  # one may have got several tokens
        tokens = [
            (self.numbers[session], token_id, session.finish_reason if last[session] == place else None)
            for place, (session, token_id) in enumerate(new_tokens)
            if session in self.numbers
        ]
        errors = self.errors + [(self.numbers[session], 500, NAN) for session in self.scheduler.failed]
        for session in [session for session in last if session.finished] + self.scheduler.failed:
            self.numbers.pop(session, None)
        self.errors, self.scheduler.failed = [], []
        return Step(tokens, errors, self.engine.kv.num_blocks - self.engine.kv.num_available())
