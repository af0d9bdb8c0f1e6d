"""Lesson 067's pipelines are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

from collections import Counter

import pytest
import torch
from rosecourse.lab.world.one_behind import OneBehind
from rosecourse.lab.world.pipeline_oracle import PipelineOracle
from rosecourse.lab.world.pipeline_scenarios import NEVER_LATE, PACES, STORIES, failing_launches
from rosecourse.lab.world.server import Server

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.engine.scheduler import OnlineScheduler
from rosecourse.lab import check
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
    assert verdict.passed, verdict


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


# -- the hunt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
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
    if right != broken:
        assert broken[0][:-1] == right[0][:-1]
        assert broken[0][-1] == right[1][steps + 1]  # the word of the row behind it, a step too early


def test_the_hunts_engines_are_both_one_step_behind(model):
    right, broken = hunt("067").engines(model)
    assert isinstance(right.pipeline, OneBehind)
    assert right.pipeline.steps_ahead == broken.pipeline.steps_ahead == 1


def test_the_engines_own_pipeline_waits_on_a_cpu_and_a_learners_stays_what_it_is(small_model):
    rung = lesson("067")
    assert InferenceEngine(small_model, EngineConfig(max_batch_size=2), rung.after).pipeline.steps_ahead == 0
    parts = rung.after.with_(pipeline=Base)
    assert WORLD.engine(parts, small_model.device) is parts
