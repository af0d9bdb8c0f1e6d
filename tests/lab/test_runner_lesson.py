"""Lesson 066's runners are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

from types import SimpleNamespace

import pytest
import torch
from rosecourse.lab.world.runner_oracle import RunnerOracle

from rosecourse import SamplingParams
from rosecourse.decode.graphs import CUDAGraphs
from rosecourse.decode.runner import buckets_up_to
from rosecourse.lab import check
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.world.cpu_graph import CPUGraph
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.graph_makers import cpu_graphs_by, graphs_for
from rosecourse.lab.world.layout import ONE_TABLE
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.pool import Sizes
from rosecourse.lab.world.worlds import RUNNER as WORLD
from tests.support.costly_runners import WITHOUT_THE_IDEA
from tests.support.runner_parts import RIGHT, WRONG, Base
from tests.support.verdicts import assert_right_but_costly


def oracle_of(part, sizes=None):
    return RunnerOracle(Learner(part, WORLD.called_with), sizes or Sizes())


def test_the_hunts_mended_runner_lives_through_every_story():
    for scenario in WORLD.scenarios:
        scenario.story(WORLD.oracle(Learner(hunt("066").mended, WORLD.called_with), scenario.sizes))


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "066")
    assert verdict.passed, verdict


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_runner_is_refused_with_its_cause(part):
    assert not check(part, "066").correct


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_costs_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(check(part, "066"), WITHOUT_THE_IDEA[part])


# -- the world --------------------------------------------------------------------------------------------------------


def test_a_start_captures_a_graph_for_each_bucket_and_a_step_replays_one():
    oracle = oracle_of(Base)
    assert [graph.run.rows for graph in oracle._log.captures] == list(reversed(buckets_up_to(16)))
    batch = [oracle.start(3) for _ in range(5)]
    for n, rows in ((5, 8), (2, 2), (3, 4), (1, 1)):
        oracle.step(*batch[:n])
        seen = oracle.graphs_seen()
        assert (seen.outside, seen.captures, seen.replays, seen.rows) == (0, 0, 1, rows)
    assert oracle.graphs_seen().cold == 0


def test_every_bucket_and_both_kinds_of_graphs_are_replayed_in_the_stories():
    replayed = set()

    class Notes(Base):
        def graph_for(self, bucket, sampled):
            replayed.add((bucket, sampled))
            return super().graph_for(bucket, sampled)

    for scenario in WORLD.scenarios:
        scenario.story(oracle_of(Notes, scenario.sizes))
    assert {bucket for bucket, sampled in replayed if not sampled} >= set(buckets_up_to(16)) | {11}
    assert {bucket for bucket, sampled in replayed if sampled} >= {1, 2, 4, 8}


def test_operations_beside_a_replay_are_counted_and_views_are_not():
    class Beside(Base):
        def __call__(self, inputs, sampled):
            logits, tokens = super().__call__(inputs, sampled)
            return logits[:].view(logits.shape), (tokens + 0).expand_as(tokens)

    oracle = oracle_of(Beside)
    oracle.step(oracle.start(3))
    assert oracle.graphs_seen().outside == 1


class Writes(Base):
    """Right but for a number that it changes in what the engine keeps."""

    change: staticmethod

    def __call__(self, inputs, sampled):
        outcome = super().__call__(inputs, sampled)
        type(self).change(self, outcome)
        return outcome


def an_old_key(part, outcome):
    rows, kv = part.work.rows, part.work.kv_append.kv
    kv.k_layers[1][rows.block_tables[0, 0], 0, 0, 0] += 1


def a_block_of_nobody(part, outcome):
    kv = part.work.kv_append.kv
    kv.v_layers[0][ONE_TABLE.free_lists(kv)[0][0], 0, 0, 0] = 7


def a_position(part, outcome):
    part.work.rows.view(1).inputs.context_lens.add_(1)


def a_pad(part, outcome):
    part.work.rows.view(16).live[-1] = 1


def a_logit(part, outcome):
    outcome.logits[0, 5] += 0.1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (an_old_key, "K and V of session A at position 0"),
        (a_block_of_nobody, "which nobody owns, has been written at slot 0"),
        (a_position, "after the step the position in row 0, session A, is 5, not 4"),
        (a_pad, "row 15, in which nobody sits, has the mark 1, not 0"),
        (a_logit, "the logits returned in row 0, session A, begin with"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_a_step_leaves_behind_is_compared(change, says):
    part = type("Changes", (Writes,), {"change": staticmethod(change)})
    oracle = oracle_of(part)
    a = oracle.start(3)
    with pytest.raises(PartIsWrong) as wrong:
        oracle.step(a)
    assert says in wrong.value.fault.what


def test_a_warm_up_in_the_world_runs_the_work_as_that_of_a_gpu():
    done = []

    class Notes(Base):
        def start(self, work):
            graph = self.new()
            graph.warm_up(lambda: done.append(True))
            super().start(work)

    oracle_of(Notes)
    assert done == [True]


def test_graphs_of_a_device():
    assert graphs_for(torch.device("cpu")) is CPUGraph
    with cpu_graphs_by(dict):
        assert graphs_for(torch.device("cpu")) is dict
    assert graphs_for(torch.device("cpu")) is CPUGraph


def test_graphs_of_a_gpu_share_their_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "Stream", SimpleNamespace)
    maker = graphs_for(torch.device("cuda"))
    assert isinstance(maker, CUDAGraphs)


# -- the hunt ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps_between", "kinds"), [(0, 2), (1, 1), (-1, 1)])
def test_the_hunts_runner_is_wrong_only_where_the_number_of_sessions_stays(steps_between, kinds, model):
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
