"""Where a step's time goes, measured from outside."""

import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from rosecourse import LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.measure.anatomy import PART_NAMES, StepTimes, decode_anatomies, decode_anatomy, touched
from rosecourse.pictures.colours import COLOURS

LAST_APPEND = lesson("061").after  # the append is a stage of its own


def prefilled(model, parts):
    engine = InferenceEngine(model, EngineConfig(prefix_cache=False), parts)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    return engine, [session]


def test_every_rung_is_timed_and_leaves_a_stage_as_it_was(small_model):
    """A stage that is the same before and after shows whether the machine was."""
    stages = {}
    for rung in LESSONS:
        engine, sessions = prefilled(small_model, rung.after)
        times = decode_anatomy(engine, sessions, steps=3)
        stages[rung.number] = engine.decode_step.stages
        assert list(times) == [*engine.decode_step.stages, "rest"]
        assert len(times) == 3
        assert (times > 0).all(axis=None)
        assert {*times} <= PART_NAMES.keys() == COLOURS.keys()
    for before, rung in pairwise(LESSONS):
        both = stages[before.number], stages[rung.number]
        found = touched(*both, rung.changes)
        assert found, rung.number
        assert {*both[0], *both[1], "rest"} - found, rung.number


# -- in turns ------------------------------------------------------------------------------------------------------


def test_engines_take_turns_and_the_first_does_not_count(small_model):
    order = []
    engines, sessions = {}, {}
    for name in ("before", "after"):

        class Noted(LAST_APPEND.kv_append):
            letter = name[0]

            def __call__(self, *args):
                order.append(self.letter)
                time.sleep(0.005)
                super().__call__(*args)

        engines[name], sessions[name] = prefilled(small_model, LAST_APPEND.with_(kv_append=Noted))
    times = decode_anatomies(engines, sessions, turns=3)
    assert "".join(order) == "".join(4 * letter for letter in "baabbaab")
    assert list(times.turns) == ["before", "after"]
    assert times.parts == ["block_tables", "forward", "kv_append", "rest"]
    assert all(len(turns) == 3 for turns in times.turns.values())
    assert times.turns["after"]["kv_append"].min() >= 5  # counted where it is spent
    assert all(type(engine.decode_step.kv_append).__name__ == "Noted" for engine in engines.values())


def test_a_turn_has_the_median_of_its_steps(monkeypatch):
    """One step in each turn is slow: the turn's median passes over it."""
    steps = pd.DataFrame({"forward": [1.0, 1.0, 1.0, 9.0]})
    monkeypatch.setattr("rosecourse.measure.anatomy.decode_anatomy", lambda *_: steps)
    times = decode_anatomies({"before": None, "after": None}, {"before": [], "after": []}, turns=10)
    assert times.milliseconds("before") == times.milliseconds("after") == {"forward": 1.0}


def test_a_machine_that_is_slow_at_times_is_slow_for_all():
    """Slow turns of both, but one more of the first: a median over all would say 1.0 against 2.0 ms."""
    turns = {"before": [2.0] * 6 + [1.0] * 5, "after": [2.0] * 5 + [1.0] * 6}
    times = StepTimes({name: pd.DataFrame({"forward": one}) for name, one in turns.items()})
    assert times.step_ms("before") / times.step_ms("after") == pytest.approx(17 / 16)


# -- what may be said ----------------------------------------------------------------------------------------------


def parted(milliseconds, seed, drift=1.0):
    """15 turns, with some noise, of parts that take so long."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({part: ms / drift * rng.lognormal(0, 0.025, 15) for part, ms in milliseconds.items()})


BEFORE = {"place": 0.1, "copy_blocks": 0.05, "block_tables": 0.6, "forward": 2.0, "rest": 0.4}
AFTER = {"place": 0.1, "copy_blocks": 0.05, "plan": 0.2, "forward": 2.0, "rest": 0.3}


@pytest.mark.parametrize("drift", [1.0, 1.15, 0.87])
def test_a_gain_is_claimed_where_untouched_parts_agree(drift):
    times = StepTimes({"before": parted(BEFORE, 3), "after": parted(AFTER, 4, drift)})
    assert times.parts == ["place", "copy_blocks", "plan", "block_tables", "forward", "rest"]
    untouched, changed = times.sentences(["step", "block_tables", "rows"])
    assert untouched.startswith("Untouched, place and copy blocks and forward: ")
    if drift == 1.0:
        assert untouched.endswith("no difference measurable here.")
        assert "0.99 ms (32% of the step) " in changed
        assert changed.endswith("faster.")
        assert times.ratio("block_tables", "plan").value == pytest.approx(3.0, rel=0.05)
    else:
        assert untouched.endswith("faster." if drift > 1 else "slower.")
        assert "no gain is claimed" in changed


def test_where_nothing_is_left_alone_all_is_compared():
    before, after = parted({"forward": 2.0, "rest": 0.3}, 3), parted({"plan": 1.0, "rest": 0.3}, 3)
    (changed,) = StepTimes({"before": before, "after": after}).sentences(["step"])
    assert changed.startswith("Changed, plan rows and forward and sample and the rest: 2.29 ms (100% of the step) ")


UP_TO_062 = ("block_tables", "forward", "kv_append")
AT_063 = ("place", "copy_blocks", "block_tables", "forward")
FROM_064 = ("place", "copy_blocks", "plan", "forward")
FROM_066 = ("place", "copy_blocks", "plan", "runner")


@pytest.mark.parametrize(
    ("before", "after", "changed", "found"),
    [
        (UP_TO_062, UP_TO_062, "cache block_tables kv_append", "block_tables kv_append"),
        (UP_TO_062, AT_063, "step forward kv_append copy_blocks", "place copy_blocks forward kv_append rest"),
        (AT_063, FROM_064, "step block_tables rows", "block_tables plan rest"),
        (FROM_064, FROM_066, "cache step rows runner", "place plan forward runner rest"),
        (FROM_066, FROM_066, "runner", "runner"),
        (FROM_066, FROM_066, "forward", "runner rest"),  # which is called by the runner
        (FROM_064, FROM_064, "kv_append", "forward rest"),  # which is called by the forward
        (FROM_064, FROM_064, "rows", "plan rest"),
        (FROM_064, FROM_064, "cache", "place"),
        (AT_063, FROM_064, "", "block_tables plan rest"),  # whoever has replaced the stages
        (FROM_064, FROM_064, "", ""),
    ],
)
def test_what_a_lesson_may_change_follows_from_its_parts(before, after, changed, found):
    assert touched(before, after, changed.split()) == {*found.split()}
    assert touched(after, before, changed.split()) == {*found.split()}
