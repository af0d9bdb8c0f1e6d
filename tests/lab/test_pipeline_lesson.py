"""Lesson 067: wrong pipelines are refused, right ones in other styles pass, and those that wait lack the idea."""

<<<<<<< ours
from collections import Counter

=======
>>>>>>> theirs
import pytest
import torch
from rosecourse.lab.world.one_behind import OneBehind
from rosecourse.lab.world.pipeline_oracle import PipelineOracle
from rosecourse.lab.world.pipeline_scenarios import NEVER_LATE, PACES, STORIES, failing_launches
from rosecourse.lab.world.server import Server

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.engine.scheduler import OnlineScheduler
from rosecourse.lab import check
<<<<<<< ours
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.worlds import PIPELINE as WORLD
from tests.support.cells import assert_untouched_is_right, command_on_solution
from tests.support.costly_pipelines import WITHOUT_THE_IDEA
from tests.support.pipeline_parts import RIGHT, Base, RingOfThree
from tests.support.verdicts import assert_right_but_costly, judged
from tests.support.wrong_landings import WRONG_LANDINGS
from tests.support.wrong_pipelines import (
    WRONG_PIPELINES,
    AlwaysPinned,
    EventsOfAGPU,
    NeverGivesBack,
    OneSlotTakenFirst,
    OneSlotTooFew,
    TakesItsSlotFirst,
)

WRONG = WRONG_LANDINGS + WRONG_PIPELINES
LATE = [scenario for scenario in WORLD.scenarios if scenario.name.endswith("a device that is late")]


def oracle_of(part, sizes):
    return PipelineOracle(Learner(part, WORLD.called_with), sizes)


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "067")
=======
from rosecourse.lab.checking.flights import OneBehind, PipelineStories
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.checks.judging import trial_of
from rosecourse.lab.course import in_step, one_behind
from rosecourse.lab.exercises.hunting import hunt
from tests.support import given_pipeline, pipeline_parts
from tests.support.cells import assert_untouched_is_right
from tests.support.differences import differing
from tests.support.verdicts import judged

WRONG = {
    # what is waited for, and read
    "no wait": ("        self.event.synchronize()\n        return", "        return"),
    "recorded before the copy": (
        "        self.size = len(tokens)\n        self.host[: self.size].copy_(tokens, non_blocking=True)\n        "
        "self.event.record()",
        "        self.event.record()\n        self.size = len(tokens)\n        "
        "self.host[: self.size].copy_(tokens, non_blocking=True)",
    ),
    "never recorded": ("        self.event.record()\n", ""),
    "read, then waited": (
        "        self.event.synchronize()\n        return self.host[: self.size].tolist()",
        "        tokens = self.host[: self.size].tolist()\n        self.event.synchronize()\n        return tokens",
    ),
    "the event of another slot": ("oldest.pending.read()", "(self.ring[-1:] or [oldest.pending])[0].read()"),
    "all rows": ("return self.host[: self.size].tolist()", "return self.host.tolist()"),
    "backwards": ("return self.host[: self.size].tolist()", "return self.host[: self.size].tolist()[::-1]"),
    "as many as the newest": (
        "tokens = oldest.pending.read()",
        "tokens = oldest.pending.read()[: len(self.in_flight[-1].sessions)]",
    ),
    "the newest slot": ("tokens = oldest.pending.read()", "tokens = self.in_flight[-1].pending.read()"),
    "the rows of the device": (
        "oldest.pending.read()",
        "self.step.rows.view(len(oldest.sessions)).inputs.token_ids.tolist()",
    ),
    "tokens kept on the device": ("slot.put(outcome.tokens)", "slot.read = outcome.tokens.tolist"),
    "by NumPy": ("slot.put(outcome.tokens)", "slot.read = outcome.tokens.numpy().tolist"),
    "16 bits": ("dtype=torch.int64", "dtype=torch.int16"),
    "those without a token left out": ("[: self.size].tolist()", "[: self.size].clamp(min=0).tolist()"),
    # the ring
    "one slot": ("for _ in range(2))", "for _ in range(2))\n        self.ring[1] = self.ring[0]"),
    "one memory": ("for _ in range(2))", "for _ in range(2))\n        self.ring[1].host = self.ring[0].host"),
    "one slot too few": ("for _ in range(2))", "for _ in range(1))"),
    "the slot is given back at once": ("self.ring.popleft()", "self.ring[-1]"),
    "given back before the wait": (
        "        tokens = oldest.pending.read()\n        self.in_flight.popleft()\n        "
        "self.ring.append(oldest.pending)\n",
        "        self.ring.append(oldest.pending)\n        tokens = oldest.pending.read()\n        "
        "self.in_flight.popleft()\n",
    ),
    "never given back": ("        self.ring.append(oldest.pending)\n", ""),
    "taken before the step": (
        "        outcome = self.step.run(batch)\n        slot = self.ring.popleft()\n",
        "        slot = self.ring.popleft()\n        outcome = self.step.run(batch)\n",
    ),
    "four rows": ("Slot(config.max_batch_size,", "Slot(min(4, config.max_batch_size),"),
    "the ring of the class": (
        "for _ in range(2))",
        "for _ in range(2))\n        Given.shared = self.ring = getattr(Given, 'shared', self.ring)",
    ),
    "not given back by abandon": (
        "            self.ring.append(self.in_flight.popleft().pending)\n",
        "            self.in_flight.popleft()\n",
    ),
    # what is in flight
    "the newest first": ("oldest = self.in_flight[0]", "oldest = self.in_flight[-1]"),
    "the newest lost": ("        if not self.in_flight:\n", "        self.in_flight.clear()\n        if True:\n"),
    "it stays in flight": ("        self.in_flight.popleft()\n        self.ring", "        self.ring"),
    "popped before the wait": (
        "self.in_flight[0]\n        tokens = oldest.pending.read()\n        self.in_flight.popleft()\n",
        "self.in_flight.popleft()\n        tokens = oldest.pending.read()\n",
    ),
    "in flight before it runs": (
        "        outcome = self.step.run(batch)\n",
        "        self.in_flight.append(batch)\n        outcome = self.step.run(batch)\n        self.in_flight.pop()\n",
    ),
    "sessions of the newest": (
        "        self.in_flight.append(batch)\n",
        "        self.in_flight.append(batch)\n        self.in_flight[0].sessions = list(batch.sessions)\n",
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
    "abandoned, the oldest": ("        while self.in_flight:\n", "        if self.in_flight:\n"),
    "abandoned, nothing": ("    def abandon(self):\n", "    def abandon(self):\n        return\n"),
    "abandoned and remembered": ("        self.step.rows.forget()\n", ""),
    "abandon raises": ("with suppress(Exception):", "with suppress(ValueError):"),
    # what is returned
    "a tensor": ("[: self.size].tolist()", "[: self.size]"),
    "numbers of NumPy": ("return self.host[: self.size].tolist()", "return list(self.host[: self.size].numpy())"),
    "tokens alone": ("return oldest, tokens", "return tokens"),
    "nothing": ("        return oldest, tokens\n", ""),
    "other tokens for the rows": ("has_read(oldest, tokens)", "has_read(oldest, tokens[::-1] + tokens[:1])"),
}
if not torch.cuda.is_available():
    WRONG |= {
        "always pinned": ("dtype=torch.int64)", "dtype=torch.int64, pin_memory=True)"),
        "events of a GPU": ("events_for(device)()", "torch.cuda.Event()"),
    }
COSTLY = {  # right, and what the verdict says
    "waits in launch": (
        "        self.in_flight.append(batch)\n",
        "        self.in_flight.append(batch)\n        slot.event.synchronize()\n",
        "1 wait(s) for the step launched last",
    ),
    "not ahead": ("steps_ahead = 1", "steps_ahead = 0", "1 wait(s) for the step launched last"),
    "waits for the newest": (
        "        tokens = oldest.pending.read()\n",
        "        self.in_flight[-1].pending.event.synchronize()\n        tokens = oldest.pending.read()\n",
        "1 wait(s) for the step launched last",
    ),
    "a copy that waits": (
        ".copy_(tokens, non_blocking=True)",
        ".copy_(tokens)",
        "1 wait(s) for the step launched last",
    ),
    "sent twice": (
        "        slot.put(outcome.tokens)\n",
        "        slot.put(outcome.tokens)\n        slot.put(outcome.tokens)\n",
        "2 copies of tokens to the host",
    ),
    "tells nobody": ("self.step.has_read(oldest, tokens)", "pass", "4 token(s) of which the rows are not told"),
}
RIGHT = (*pipeline_parts.RIGHT, hunt("067").mended, one_behind.Pipeline, given_pipeline.Given)


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
    assert verdict.wrong.operations <= 8, verdict


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__qualname__)
def test_one_of_another_style_is_right(part):
    is_right(part)


def test_the_courses_pipeline_passes_and_the_untouched_exercise_waits():
    verdict = check(one_behind.Pipeline, "067")
>>>>>>> theirs
    assert verdict.passed, verdict
    assert "wait" in assert_untouched_is_right("067")


<<<<<<< ours
ON_A_CPU = (AlwaysPinned, EventsOfAGPU)  # with a GPU these are there


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_pipeline_is_refused_with_its_cause(part):
    if part in ON_A_CPU and torch.cuda.is_available():
        pytest.skip("a machine with a GPU has what it asks for")
    assert not judged(part, "067").correct


def alone(oracle):
    one = oracle.start(1)
    for _ in range(3):
        oracle.step(one)


def alone_and_landed_at_first(oracle):
    one = oracle.start(1)
    oracle.step(one)
    oracle.settle()
    oracle.step(one)
    oracle.step(one)


FEW, LOST = Cause.SLOTS_TOO_FEW, Cause.SLOT_LOST


@pytest.mark.parametrize(
    ("part", "story", "causes"),
    [
        (OneSlotTooFew, alone, (FEW, None)),
        (OneSlotTakenFirst, alone, (FEW, None)),
        (OneSlotTooFew, failing_launches, (LOST, FEW)),
        (NeverGivesBack, alone, (LOST, None)),
        (TakesItsSlotFirst, failing_launches, (LOST, None)),
        (OneSlotTooFew, alone_and_landed_at_first, (LOST, FEW)),
        (NeverGivesBack, alone_and_landed_at_first, (LOST, FEW)),
    ],
)
def test_an_empty_ring_was_too_small_or_got_nothing_back(part, story, causes):
    """Both are named where a step has ended, and two were never in flight at once."""
    with pytest.raises(PartIsWrong, match=r"pop from an empty deque, with only \d steps? in flight") as wrong:
        story(oracle_of(part, LATE[0].sizes))
    fault = wrong.value.fault
    assert (fault.cause, fault.or_else) == causes
    assert ("the ring needs `steps_ahead + 1`" in fault.reason) is (FEW in causes)
    assert ("whoever takes a slot gives it back" in fault.reason) is (LOST in causes)


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_costs_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(check(part, "067"), WITHOUT_THE_IDEA[part])


def test_the_untouched_exercise_is_right_and_has_the_idea_not_yet():
    assert_untouched_is_right("067")


def test_the_hunts_mended_pipeline_lives_through_every_story():
    for scenario in WORLD.scenarios:
        scenario.story(oracle_of(hunt("067").mended, scenario.sizes))


def test_the_command_takes_a_pipeline(tmp_path, capsys):
    command_on_solution("067", tmp_path, capsys)


# -- the stories ------------------------------------------------------------------------------------------------------


def test_every_story_is_told_with_a_late_device_and_many_with_one_that_is_not():
    ends = Counter(scenario.name.rpartition(", ")[2] for scenario in WORLD.scenarios)
    assert set(ends) == set(PACES.values())
    assert ends["a device that is late"] > len(STORIES)
    assert ends["a device that is never late"] > len(NEVER_LATE) >= 10
    assert set(NEVER_LATE) <= set(STORIES)


@pytest.fixture
def served(monkeypatch):
    """The servers of a story with a right pipeline, by the beginning of its name; the learner's come second."""
    servers = []
    begin = Server.__init__
    monkeypatch.setattr(Server, "__init__", lambda self, *given: servers.append(self) or begin(self, *given))

    def play(name):
        (scenario,) = [scenario for scenario in LATE if scenario.name.startswith(name)]
        scenario.story(oracle_of(RingOfThree, scenario.sizes))
        return servers

    return play


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("requests of all lengths", {"length": 11}),
        ("requests that are cancelled", {"length": 3, "cancelled": 4}),
        ("logits of NaN", {"length": 1, "error": 3}),
        ("interrupts and failures amid requests", {"length": 4}),
    ],
)
def test_the_requests_of_a_story_end_as_it_says(served, name, reasons):
    for server in served(name):
        assert Counter(session.finish_reason for session in server.sessions.values()) == reasons


def test_texts_end_at_their_first_token_and_at_later_ones(served):
    servers = served("texts that end")[1::2]  # the learner's
    ended = [len(s.completion_ids) for one in servers for s in one.sessions.values() if s.finish_reason == "stop"]
    assert {1, 2, 3, 4} <= set(ended)


def test_blocks_are_too_few_and_beginnings_are_shared(served):
    assert all(server.scheduler.stats.preemptions for server in served("too few blocks"))
    mine = served("prompts with a shared")[-1]
    assert mine.engine.prefix_cache.entries()
    assert mine.log.number > 5


def test_samples_and_forks_are_served(served):
    assert len(served("several samples")[-1].sessions) == 5
    assert len(served("requests that are forked")[-1].sessions) == 4


def test_one_step_is_in_flight_while_the_next_is_launched():
    seen = []

    class Notes(Base):
        def launch(self, batch):
            seen.append(len(self.in_flight))
            super().launch(batch)

    scenario = LATE[0]
    scenario.story(oracle_of(Notes, scenario.sizes))
    assert seen == [0, *[1] * (len(seen) - 1)]


@pytest.mark.parametrize("name", ["A", "B"])
def test_what_the_engine_makes_of_it_is_compared_with_an_engine_that_waits(name):
    """For faults that no record and no slot shows."""
    scenario = next(scenario for scenario in LATE if scenario.name.startswith("batches that grow"))
    oracle = oracle_of(Base, scenario.sizes)
    batch = [oracle.start(3), oracle.start(5)]
    oracle.step(*batch)
    oracle.settle()
    batch["AB".index(name)].session.token_ids[-1] ^= 1
    with pytest.raises(PartIsWrong, match=rf"session {name} has another token \d+ than without the pipeline"):
        oracle.step(*batch)
=======
@pytest.mark.parametrize("name", COSTLY)
def test_what_costs_more_than_the_idea_leaves_is_told(name):
    old, new, says = COSTLY[name]
    part = with_change(old, new)
    is_right(part)
    told = " ".join(lacking(part))
    assert says in told


def lacking(part):
    return list(trial_of("067").missing(part))


def test_a_step_that_waits_lacks_the_idea():
    assert lacking(in_step.Pipeline)
    assert not any(map(lacking, RIGHT))
>>>>>>> theirs


# -- the hunt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_hunts_pipeline_is_wrong_only_after_an_odd_number_of_steps(steps, model):
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


def test_the_engines_own_pipeline_waits_on_a_cpu_and_a_learners_stays_what_it_is(small_model):
    rung = lesson("067")
    assert InferenceEngine(small_model, EngineConfig(max_batch_size=2), rung.after).pipeline.steps_ahead == 0
    parts = rung.after.with_(pipeline=given_pipeline.Given)
    assert PipelineStories.engine(parts, small_model.device) is parts
