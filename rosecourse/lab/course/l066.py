"""Lesson 066, one CUDA graph: the device's part of a step is recorded once, and a step is one replay."""

import warnings

from ...config import SamplingParams
from ...decode.inputs import DecodeInputs
from ...decode.runner import Outcome
from ...engine.engine import InferenceEngine
from ..checking.cpu_runners import CPUGraphRunnerOf066
from ..checking.runners import IDEA, RunnerStories
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Course, small
from .scenes import Moments, Played, Sessions, Truth, first_wrong_token, start_lengths, steps


class CPURunner(CPUGraphRunnerOf066):
    """The lesson's own runner, with graphs on a CPU, and without a warning of what is captured late."""

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        with warnings.catch_warnings(action="ignore"):
            return super().__call__(inputs, sampled)


def scene(engine: InferenceEngine) -> Moments:
    sessions = start_lengths(engine, {"A": 5, "B": 9, "C": 3})
    yield sessions
    yield from steps(engine, sessions, 2)
    sessions |= _sampling(engine, "D", 2)  # it joins, and nobody leaves
    yield from steps(engine, sessions, 2)
    for name in ("D", "A"):
        engine.free(sessions.pop(name))
    yield from steps(engine, sessions, 2)
    engine.free(sessions.pop("B"))
    sessions |= _sampling(engine, "E", 1)
    yield from steps(engine, sessions, 4)


def _sampling(engine: InferenceEngine, name: str, seed: int) -> Sessions:
    params = SamplingParams(max_new_tokens=24, stop_on_eos=False, temperature=1.2, seed=seed)
    session = engine.new_session([53] * 7, params)
    engine.take_tokens([session], engine.prefill([session]))
    return {name: session}


def truth(hunt: Played) -> Truth:
    name, moment, before, now = first_wrong_token(hunt, lambda engine, sessions: set(sessions))
    return {"session": {name}, "moment": {moment}, "left": before - now}


COURSE = Course(
    world=RunnerStories,
    beside=CPURunner,
    symptom=(
        "A request with a temperature gets the words of that temperature, alone or beside others. Now and then one "
        "does not: it gets the most probable word each time. All other requests are right, and so is the same "
        "request if it comes a step later or earlier."
    ),
    tools=(
        "`engine.decode_step.runner` is the runner; `engine.decode_step.rows.sampling` says whether a session of the "
        "last step samples.",
    ),
    questions={
        "session": "the session whose words are wrong",
        "moment": FIRST_WRONG,
        "left": "the session that has to stay for it to get the right ones",
        "line": LINE,
    },
    hints={
        "session": COMPARE_TOKENS,
        "moment": MOMENTS,
        "left": "Which session has just left? How many sessions does a step have before and after?",
        "line": "Which tape is played in that step, and when was it chosen? Print what it was recorded for.",
    },
    source='''\
import torch

from rosecourse.decode.runner import Outcome, buckets_up_to
from rosecourse.decode.sampling import argmax
from rosecourse.lab.checking.cpu_graph import graphs_for


class Jukebox:
    """A tape for each width; the one on the player stays while it fits."""

    def __init__(self, model, kv, config):
        self.best = argmax
        self.blank = graphs_for(kv.device)
        self.widths = buckets_up_to(config.max_batch_size)
        self.scores = torch.zeros(
            (self.widths[-1], model.shape.vocab_size), dtype=model.dtype, device=kv.device
        )
        self.words = torch.zeros((self.widths[-1],), dtype=torch.int64, device=kv.device)
        self.shelf, self.player, self.loaded = {}, None, None

    def start(self, work):
        self.work, self.rows = work, work.rows
        with torch.inference_mode():
            for width in sorted(self.widths, reverse=True):
                self.tape(width, False)

    def tape(self, width, draws):
        if (width, draws) not in self.shelf:
            self.shelf[width, draws] = self.recorded(width, draws)
        return self.shelf[width, draws]

    def recorded(self, width, draws):
        where = self.rows.view(width).inputs

        def song():
            made = self.work(where, draws)
            self.scores[:width] = made.logits
            self.words[:width] = made.tokens

        tape = self.blank()
        with self.rows.all_pads():
            tape.warm_up(song)
        tape.capture(song)
        return tape

    def __call__(self, inputs, sampled):
        seats = inputs.token_ids.shape[0]
        if seats != self.loaded:
            self.player = self.tape(self.width_for(seats), sampled)
            self.loaded = seats
        self.player.replay()
        return Outcome(logits=self.scores[:seats], tokens=self.words[:seats])

    def width_for(self, seats):
        return min(width for width in self.widths if width >= seats)
''',
    fault="        if seats != self.loaded:\n"
    "            self.player = self.tape(self.width_for(seats), sampled)\n"
    "            self.loaded = seats\n",
    mended="        if (seats, sampled) != self.loaded:\n"
    "            self.player = self.tape(self.width_for(seats), sampled)\n"
    "            self.loaded = seats, sampled\n",
    config=small(8, 6),
    scene=scene,
    truth=truth,
    idea=IDEA,
    unseen="how long a step takes, memory that all graphs share, and what a GPU does while the host goes on",
)
