"""Lesson 067: wrong pipelines are refused, right ones in other styles pass, and those that wait lack the idea."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.engine.scheduler import OnlineScheduler
from rosecourse.lab.checking.pipelines import OneBehind, PipelineStories
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.exercises.hunting import hunt
from tests.support import given_pipeline, pipeline_parts
from tests.support.differences import differing
from tests.support.verdicts import judged, operations_of, trial_of

WRONG = {
    # what is waited for, and read
    "no wait": ("        self.event.synchronize()\n        return", "        return"),
    "recorded before the copy": (
        "        self.size = len(tokens)\n        self.host[: self.size].copy_(tokens, non_blocking=True)\n        "
        "self.event.record()",
        "        self.event.record()\n        self.size = len(tokens)\n        "
        "self.host[: self.size].copy_(tokens, non_blocking=True)",
    ),
    "the event of another slot": ("oldest.pending.read()", "(self.ring[-1:] or [oldest.pending])[0].read()"),
    "the newest slot": ("tokens = oldest.pending.read()", "tokens = self.in_flight[-1].pending.read()"),
    "the rows of the device": (
        "oldest.pending.read()",
        "self.step.rows.view(len(oldest.sessions)).inputs.token_ids.tolist()",
    ),
    "tokens kept on the device": ("slot.put(outcome.tokens)", "slot.read = outcome.tokens.tolist"),
    "by NumPy": ("slot.put(outcome.tokens)", "slot.read = outcome.tokens.numpy().tolist"),
    "16 bits": ("dtype=torch.int64", "dtype=torch.int16"),
    # the ring
    "one slot too few": ("for _ in range(2))", "for _ in range(1))"),
    "the slot is given back at once": ("self.ring.popleft()", "self.ring[-1]"),
    "never given back": ("        self.ring.append(oldest.pending)\n", ""),
    "taken before the step": (
        "        outcome = self.step.run(batch)\n        slot = self.ring.popleft()\n",
        "        slot = self.ring.popleft()\n        outcome = self.step.run(batch)\n",
    ),
    "four rows": ("Slot(config.max_batch_size,", "Slot(min(4, config.max_batch_size),"),
    "not given back by abandon": (
        "            self.ring.append(self.in_flight.popleft().pending)\n",
        "            self.in_flight.popleft()\n",
    ),
    # what is in flight
    "the newest first": ("oldest = self.in_flight[0]", "oldest = self.in_flight[-1]"),
    "it stays in flight": ("        self.in_flight.popleft()\n        self.ring", "        self.ring"),
    "popped before the wait": (
        "self.in_flight[0]\n        tokens = oldest.pending.read()\n        self.in_flight.popleft()\n",
        "self.in_flight.popleft()\n        tokens = oldest.pending.read()\n",
    ),
    "sessions in another order": (
        "        outcome = self.step.run(batch)\n",
        "        batch.sessions.sort(key=lambda one: len(one.token_ids))\n        outcome = self.step.run(batch)\n",
    ),
    "nobody's batch": ("        batch.pending = slot\n", "        batch.pending, batch.user = slot, None\n"),
    "tables of the landing": (
        "        oldest = self.in_flight[0]\n",
        "        oldest = self.in_flight[0]\n        oldest.tables = [one.table for one in oldest.sessions]\n",
    ),
    "records of its own": ("self.in_flight.append(batch)", "self.in_flight.append(slot)"),
    "run twice": ("        outcome = self.step", "        self.step.run(batch)\n        outcome = self.step"),
    "two ahead": ("steps_ahead = 1", "steps_ahead = 2"),
    "nothing in flight": ("self.step, self.in_flight = step, deque()", "self.step, self.flights = step, deque()"),
    # what fails
    "an interrupt swallowed": (
        "        tokens = oldest.pending.read()\n",
        "        try:\n            tokens = oldest.pending.read()\n        except BaseException:\n            "
        "tokens = oldest.pending.read()\n",
    ),
    "a failing step swallowed": (
        "        outcome = self.step.run(batch)\n",
        "        try:\n            outcome = self.step.run(batch)\n        except Exception:\n            return\n",
    ),
    "abandoned without a wait": (
        "            with suppress(Exception):\n                self.in_flight[0].pending.event.synchronize()\n",
        "",
    ),
    "abandoned and remembered": ("        self.step.rows.forget()\n", ""),
    "abandon raises": ("with suppress(Exception):", "with suppress(ValueError):"),
    # what is returned
    "numbers of NumPy": ("return self.host[: self.size].tolist()", "return list(self.host[: self.size].numpy())"),
    "tokens alone": ("return oldest, tokens", "return tokens"),
    "nothing": ("        return oldest, tokens\n", ""),
    "other tokens for the rows": ("has_read(oldest, tokens)", "has_read(oldest, tokens[::-1] + tokens[:1])"),
}
if not torch.cuda.is_available():
    WRONG |= {
        "always pinned": ("dtype=torch.int64)", "dtype=torch.int64, pin_memory=True)"),
    }
COSTLY = {  # right, and what the verdict says
    "waits in launch": (
        "        self.in_flight.append(batch)\n",
        "        self.in_flight.append(batch)\n        slot.event.synchronize()\n",
        "waits for the step launched last",
    ),
    "not ahead": ("steps_ahead = 1", "steps_ahead = 0", "waits for the step launched last"),
    "waits for the newest": (
        "        tokens = oldest.pending.read()\n",
        "        self.in_flight[-1].pending.event.synchronize()\n        tokens = oldest.pending.read()\n",
        "waits for the step launched last",
    ),
    "a copy that waits": (
        ".copy_(tokens, non_blocking=True)",
        ".copy_(tokens)",
        "waits for the step launched last",
    ),
    "sent twice": (
        "        slot.put(outcome.tokens)\n",
        "        slot.put(outcome.tokens)\n        slot.put(outcome.tokens)\n",
        "copies of tokens to the host",
    ),
    "tells nobody": ("self.step.has_read(oldest, tokens)", "pass", "tokens of which the rows are not told"),
}
RIGHT = (*pipeline_parts.RIGHT, hunt("067").mended, given_pipeline.Given)


def with_change(old, new):
    return differing(given_pipeline.__file__, "Given", (old, new))


def is_right(part):
    stories = PipelineStories()
    for n in range(100):
        found = outcome(stories, lambda: part, stories.number(n))
        assert found is None, (n, found)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pipeline_is_refused_by_a_small_story(name):
    verdict = judged(with_change(*WRONG[name]), "067")
    assert not verdict.correct, verdict
    assert operations_of(verdict) <= 8, verdict


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__qualname__)
def test_one_of_another_style_is_right(part):
    is_right(part)


@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_more_than_the_idea_leaves_is_told(name):
    old, new, says = COSTLY[name]
    part = with_change(old, new)
    is_right(part)
    told = " ".join(lacking(part))
    assert says in told


def lacking(part):
    return list(trial_of("067").missing(part))


def test_right_ones_lack_nothing():
    assert not any(map(lacking, RIGHT))


# -- the hunt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_hunts_pipeline_is_wrong_only_after_odd_steps(steps, model):
    """Steps of three rows, and then of two."""

    def play(engine):
        scheduler, sessions = OnlineScheduler(engine), []
        for n, new_tokens in enumerate((1 + steps, 9, 9)):
            params = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False, temperature=1.0, seed=n)
            sessions.append(engine.new_session([10 * n + 3] * (n + 4), params))
            scheduler.submit(sessions[-1])
        scheduler.run()
        return [session.completion_ids for session in sessions]

    right, broken = map(play, hunt("067").engines(model))
    assert (right != broken) is (steps % 2 == 1)


def test_the_hunts_engines_are_both_one_step_behind(model):
    right, broken = hunt("067").engines(model)
    assert isinstance(right.pipeline, OneBehind)
    assert right.pipeline.steps_ahead == broken.pipeline.steps_ahead == 1


def test_engines_pipeline_waits_on_a_cpu_and_a_learners_stays(small_model):
    rung = lesson("067")
    assert InferenceEngine(small_model, EngineConfig(max_batch_size=2), rung.after).pipeline.steps_ahead == 0
    parts = rung.after.with_(pipeline=given_pipeline.Given)
    assert PipelineStories.engine(parts, small_model.device) is parts
