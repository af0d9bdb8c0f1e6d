"""Lesson 066: wrong runners are refused, right ones in other styles pass; those that launch too much lack the idea."""

import pytest
import torch

from rosecourse import SamplingParams
from rosecourse.decode.graphs import CUDAGraphs
from rosecourse.lab.checking.cpu_graph import CPUGraph, cpu_graphs_by, graphs_for
from rosecourse.lab.checking.runners import RunnerStories
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.exercises.hunting import hunt
from tests.support import given_runner, runner_parts
from tests.support.differences import differing
from tests.support.verdicts import judged, operations_of, trial_of

START = "            for bucket in reversed(self.buckets):\n                self.graphs[bucket, False] = self.captured("
INPUTS = "self.work.rows.view(bucket).inputs"
WARM_UP = "        with self.work.rows.all_pads():\n            graph.warm_up(run)\n"
REPLAY = "        self.graphs[bucket, sampled].replay()\n"
MISSING = "        if (bucket, sampled) not in self.graphs:\n            self.graphs[bucket, sampled] = self.captured("
BUCKET = "min(bucket for bucket in self.buckets if bucket >= n)"
RETURN = "return Outcome(self.logits[:n], self.tokens[:n])"
FROZEN = (  # captured in the first step of a bucket
    (START, "            for bucket in ():\n                self.graphs[bucket, False] = self.captured("),
    ("        n = len(inputs.token_ids)\n", "        n = len(inputs.token_ids)\n        self.given = inputs\n"),
    (INPUTS, "self.given"),
)
REPLACE = "from dataclasses import replace\n\nimport torch\n"
WRONG = {
    "pads returned": ((RETURN, "return Outcome(self.logits[:bucket], self.tokens[:bucket])"),),
    "the next smaller bucket": ((BUCKET, "max(bucket for bucket in self.buckets if bucket <= n)"),),
    "inputs of a step": FROZEN,
    "tokens of its own": (
        ("import torch\n", REPLACE),
        (
            f"self.new(), {INPUTS}\n",
            f"self.new(), {INPUTS}\n        inputs = replace(inputs, token_ids=inputs.token_ids.clone())\n",
        ),
    ),
    "a short context": (
        ("import torch\n", REPLACE),
        (f"self.new(), {INPUTS}\n", f"self.new(), {INPUTS}\n        inputs = replace(inputs, max_context_len=6)\n"),
    ),
    "the outcome replaced": (
        ("self.logits[:bucket].copy_(made.logits)", "self.logits = made.logits"),
        ("self.tokens[:bucket].copy_(made.tokens)", "self.tokens = made.tokens"),
    ),
    "logits of one row": (("self.logits[:bucket].copy_(made.logits)", "self.logits[:1].copy_(made.logits[:1])"),),
    "a warm-up among the living": ((WARM_UP, "        graph.warm_up(run)\n"),),
    "pads for ever": ((WARM_UP, "        self.work.rows.all_pads().__enter__()\n        graph.warm_up(run)\n"),),
    "replayed twice": ((REPLAY, REPLAY + REPLAY),),
    "replayed among pads": ((REPLAY, f"        with self.work.rows.all_pads():\n    {REPLAY}"),),
    "always greedy": (("        n = len(inputs.token_ids)\n", "        n, sampled = len(inputs.token_ids), False\n"),),
    "one kind for each bucket": (
        (START, "            for bucket in ():\n                self.graphs[bucket, False] = self.captured("),
        (BUCKET, f"{BUCKET}\n        sampled = self.kinds.setdefault(bucket, sampled)"),
        ("        self.graphs = {}\n", "        self.graphs, self.kinds = {}, {}\n"),
    ),
    "graphs of the class": (
        ("        self.graphs = {}\n", "        self.graphs = Given.shared = getattr(Given, 'shared', {})\n"),
        (
            START,
            START.replace("                self", "                (bucket, False) in self.graphs or self").replace(
                "self.graphs[bucket, False] = self.captured(",
                "self.graphs.update({(bucket, False): self.captured(bucket, False)}) # (",
            ),
        ),
    ),
    "the best by NumPy": (("import argmax\n", "import argmax_on\n"), ("= argmax\n", "= argmax_on(kv.device)\n")),
    "graphs of a CPU alone": (
        (
            "from rosecourse.lab.checking.cpu_graph import graphs_for",
            "from rosecourse.lab.checking.cpu_graph import CPUGraph",
        ),
        ("graphs_for(kv.device)", "CPUGraph"),
    ),
    "no best": (("        self.best = argmax\n", ""),),
    "logits alone": ((RETURN, "return self.logits[:n]"),),
    "tokens of 32 bits": (("dtype=torch.int64", "dtype=torch.int32"),),
}
COSTLY = {  # right, and what is said of their steps
    "eager": (((REPLAY, "        return self.work(inputs, sampled)\n"),), "that the host launches outside a replay"),
    "captured in each step": (
        ((MISSING, "        if True:\n            self.graphs[bucket, sampled] = self.captured("),),
        "captures in",
    ),
    "captured when needed": (FROZEN[:1], "captures in"),
    "one large graph": (((BUCKET, "self.buckets[-1]"),), "rows in the graph"),
    "always sampling": (
        (("        n = len(inputs.token_ids)\n", "        n, sampled = len(inputs.token_ids), True\n"),),
        "replays of a graph that samples, though nobody asks",
    ),
    "one for each size": (
        (("buckets_up_to(config.max_batch_size)", "range(1, config.max_batch_size + 1)"),),
        "graphs captured since the start",
    ),
    "copies outside": (
        ((RETURN, "return Outcome(self.logits[:n].clone(), self.tokens[:n].clone())"),),
        "operations that the host launches outside a replay",
    ),
    "in the graph's memory": (
        (
            (
                "            self.logits[:bucket].copy_(made.logits)\n",
                "            self.made[bucket, sampled] = made\n",
            ),
            ("            self.tokens[:bucket].copy_(made.tokens)\n", ""),
            ("        self.graphs = {}\n", "        self.graphs, self.made = {}, {}\n"),
            (RETURN, "return Outcome(*(made[:n] for made in self.made[bucket, sampled]))"),
        ),
        "tensors of its outcome in the memory of a graph",
    ),
    "cold": (((WARM_UP, ""),), "graphs captured before a step of their kind has run"),
}
RIGHT = (*runner_parts.RIGHT, hunt("066").mended, given_runner.Given)


def with_changes(changes):
    return differing(given_runner.__file__, "Given", *changes)


def is_right(part, stories=10):
    trial = trial_of("066")
    for n in range(stories):
        found = outcome(trial.stories, lambda: part, trial.stories.number(n))
        assert found is None, (n, found)
    return " ".join(trial.missing(part))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_runner_is_refused_by_a_small_story(name):
    verdict = judged(with_changes(WRONG[name]), "066")
    assert not verdict.correct, verdict
    assert operations_of(verdict) <= 6, verdict


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__qualname__)
def test_one_of_another_style_is_right_and_has_the_idea(part):
    assert not is_right(part)


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_more_than_the_idea_leaves_is_told(name):
    changes, says = COSTLY[name]
    assert says in is_right(with_changes(changes), stories=3)


def test_graphs_of_a_device(monkeypatch):
    assert graphs_for(torch.device("cpu")) is CPUGraph
    with cpu_graphs_by(dict):
        assert graphs_for(torch.device("cpu")) is dict
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    assert isinstance(graphs_for(torch.device("cuda")), CUDAGraphs)


# -- the hunt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps_between", "kinds"), [(0, 2), (1, 1), (-1, 1)])
def test_hunts_runner_is_wrong_only_where_the_batch_size_stays(steps_between, kinds, model):
    found = hunt("066")

    def play(engine):
        sessions = dict(next(found.scene(engine)))
        made = list(sessions.values())
        hot = SamplingParams(max_new_tokens=24, stop_on_eos=False, temperature=1.2, seed=1)
        for step in range(7):
            if step == 2:
                engine.free(sessions.pop("A"))
            if step == 2 + steps_between:
                sessions["E"] = engine.new_session([53] * 7, hot)
                made.append(sessions["E"])
                engine.take_tokens([sessions["E"]], engine.prefill([sessions["E"]]))
            live = list(sessions.values())
            engine.take_tokens(live, engine.decode_step_sessions(live))
        return str([session.completion_ids for session in made])

    assert len({play(engine) for engine in found.engines(model)}) == kinds


def test_the_stories_have_every_bucket_and_both_kinds():
    replayed = set()

    class Notes(given_runner.Given):
        def __call__(self, inputs, sampled):
            replayed.add((len(inputs.token_ids), sampled))
            return super().__call__(inputs, sampled)

    stories = RunnerStories()
    with torch.inference_mode():
        for n in range(stories.count):
            stories.play(Notes, stories.number(n), lambda played: None)
    assert {rows for rows, sampled in replayed if not sampled} >= {1, 2, 3, 4}
    assert {rows for rows, sampled in replayed if sampled} >= {1, 2, 3, 4}
    assert max(replayed)[0] > 8
