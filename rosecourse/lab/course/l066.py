"""Lesson 066, one CUDA graph: the device's part of a step is recorded once, and a step is one replay."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import EngineConfig, SamplingParams
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..checking.runner_stories import IDEA, RunnerStories
from . import ends, starts
from .form import COMPARE_TOKENS, FIRST_WRONG, LINE, MOMENTS, Bug, Course, Exercise
from .scenes import Played, Sessions, Truth, side_by_side, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyRunner",
    difficulty=3,
    minutes=50,
    begins_as=starts.Runner,
    ends_as=ends.Runner,
    text=(
        "The cell holds a runner that is right, and launches one operation after another, as in lesson 065. Let it "
        "record the work of each bucket once, at `start`, and make of a step one replay. `graphs_for(kv.device)` "
        "returns what makes a graph, on a GPU and on a CPU. A graph has three methods: `warm_up(f)`, `capture(f)` and "
        "`replay()`, where `f` takes no arguments and returns nothing. `work.rows.view(bucket).inputs` are the "
        "inputs of a step over the first rows, `with work.rows.all_pads():` makes pads of all of them for a while, and "
        "`argmax` of `rosecourse.decode.sampling` finds the likeliest tokens by tensors alone. On a CPU a graph "
        "is a recorder for learning: it shows neither speed, nor shared memory, nor what runs at the same time."
    ),
    docstring=(
        "Brings the operations of a step to the device.\n\n"
        "Goal: a graph for each of `buckets_up_to(config.max_batch_size)`, captured at `start` after a warm-up. A step "
        "replays once, the graph of the smallest bucket that fits, and the host launches nothing else. The outcome is "
        "written into buffers of its own, outside the memory of the graphs. Steps that sample have graphs of their "
        "own, captured when they are first needed."
    ),
    look=(
        "`work(inputs, sampled)` reads tensors and writes tensors. Which of these are the same ones in every step, and "
        "which numbers does Python hand over? What has to lie still, so that a replay in an hour reads the sessions of "
        "that hour?"
    ),
    do=(
        "`work.rows.view(bucket).inputs` are the inputs of any step over the first `bucket` rows: views of the tensors "
        "that stay, as wide as the longest session can be. Rows in which nobody sits are pads, and do no harm. Capture "
        "a function that calls the work with them and copies logits and tokens into your buffers; in a step return as "
        "many of their rows as there are sessions.\n\n"
        "A warm-up runs the work. Let it find pads alone: `with self.work.rows.all_pads():`. A capture does nothing, "
        "so a replay comes after it. A step that samples has a graph of its own, beside the greedy one of the same "
        "bucket.\n\n"
        "What chooses the most probable token is captured with the rest, and has to be a function of tensors: "
        "`self.best = argmax`, from `rosecourse.decode.sampling`. Captures at the start belong into "
        "`torch.inference_mode()`, as the steps are."
    ),
    wanted=("buckets_up_to", "graphs_for"),
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
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


def truth(hunt: Played, model: Model) -> Truth:
    before: set[str] = set()
    for moment, _, ours, _, theirs in side_by_side(hunt, model):
        for name, session in ours.items():
            if session.token_ids != theirs[name].token_ids:
                return {"session": {name}, "moment": {str(moment)}, "left": before - set(ours)}
        before = set(ours)
    raise AssertionError("the broken part makes the right tokens: it is not broken")


COLLEAGUES_FILE = '''\
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
'''


BUG = Bug(
    minutes=15,
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
    source=COLLEAGUES_FILE,
    fault="        if seats != self.loaded:\n"
    "            self.player = self.tape(self.width_for(seats), sampled)\n"
    "            self.loaded = seats\n",
    mended="        if (seats, sampled) != self.loaded:\n"
    "            self.player = self.tape(self.width_for(seats), sampled)\n"
    "            self.loaded = seats, sampled\n",
    config=EngineConfig(block_size=8, max_batch_size=6, max_seq_len=48, prefix_cache=False),
    scene=scene,
    truth=truth,
    explanation=(
        "Python decides during the capture whether a step samples, so each bucket has two graphs. The colleague looks "
        "for the graph only when the number of sessions has changed, as it does when one joins or leaves. But if one "
        "leaves and another joins in the same step, the number stays, and so does the graph. If the sessions were "
        "greedy and the newcomer is not, its temperature lies in its row, and the replayed graph never reads it. The "
        "next change of the number brings the right graph, so the newcomer's later words are drawn again. The reverse "
        "case is harmless: a graph that samples gives greedy rows their most probable token. Each replay must ask "
        "again for everything that the capture decided."
    ),
)


COURSE = Course(
    number="066",
    world=RunnerStories,
    exercise=EXERCISE,
    bug=BUG,
    idea=IDEA,
    unseen="how long a step takes, memory that all graphs share, and what a GPU does while the host goes on",
)
