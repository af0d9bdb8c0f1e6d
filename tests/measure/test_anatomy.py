"""Where a step's time goes: measured from outside, and drawn."""

import time
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from rosecourse import LESSONS, ConfigError, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.measure.anatomy import PART_NAMES, LadderSteps, StepTimes, decode_anatomies, decode_anatomy
from rosecourse.measure.stages import touched
from rosecourse.pictures.colours import COLOURS
from rosecourse.pictures.plots import itl_along_steps

LAST_APPEND = lesson("061").after  # the append is a stage of its own


class SleepsWhileAppending(LAST_APPEND.kv_append):
    def __call__(self, *args):
        time.sleep(0.02)
        super().__call__(*args)


@pytest.fixture
def figure():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_time_is_counted_where_it_is_spent_and_the_engine_is_left_as_it_was(small_model):
    parts = LAST_APPEND.with_(kv_append=SleepsWhileAppending)
    engine = InferenceEngine(small_model, EngineConfig(prefix_cache=False), parts)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    seconds = decode_anatomy(engine, [session], steps=4)
    assert list(seconds) == [*engine.decode_step.stages, "rest"]
    assert all(len(samples) == 4 for samples in seconds.values())
    assert min(seconds["kv_append"]) >= 0.02
    assert all(value > 0 for samples in seconds.values() for value in samples)
    assert type(engine.decode_step.kv_append) is SleepsWhileAppending
    assert len(session.completion_ids) == 5


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_every_rung_is_timed_by_its_own_stages(small_model, rung):
    engine = InferenceEngine(small_model, EngineConfig(prefix_cache=False), rung.after)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    seconds = decode_anatomy(engine, [session], steps=3)
    assert list(seconds) == [*engine.decode_step.stages, "rest"]
    assert all(len(samples) == 3 and min(samples) > 0 for samples in seconds.values())
    assert seconds.keys() <= PART_NAMES.keys() == COLOURS.keys()


def test_itl_is_drawn_in_milliseconds_with_the_block_boundaries(figure):
    itl_along_steps(figure, [0.001] * 9 + [0.005], first_position=3, block_size=4, title="title")
    boundaries = [line.get_xdata()[0] for line in figure.lines if line.get_linestyle() == ":"]
    assert boundaries == [4, 8, 12]
    (curve,) = (line for line in figure.lines if len(line.get_xdata()) == 10)
    assert (list(curve.get_xdata()), max(curve.get_ydata())) == (list(range(3, 13)), 5.0)
    assert [text.get_text() for text in figure.get_legend().get_texts()] == ["a new block begins"]
    assert len(figure.lines) == 4  # no other figures: a percentile of the curve is not one of all gaps


# -- in turns ------------------------------------------------------------------------------------------------------


def test_engines_take_turns_and_the_first_turn_does_not_count(small_model):
    order = []
    engines, sessions = {}, {}
    for name in ("before", "after"):

        class Noted(LAST_APPEND.kv_append):
            letter = name[0]

            def __call__(self, *args):
                order.append(self.letter)
                super().__call__(*args)

        engines[name] = InferenceEngine(
            small_model, EngineConfig(prefix_cache=False), LAST_APPEND.with_(kv_append=Noted)
        )
        session = engines[name].new_session([1, 2, 3], SamplingParams(max_new_tokens=20, stop_on_eos=False))
        engines[name].take_tokens([session], engines[name].prefill([session]))
        sessions[name] = [session]
    times = decode_anatomies(engines, sessions, turns=3, chunk=2)
    assert "".join(order) == "bbaaaabbbbaaaabb"
    assert list(times.seconds) == ["before", "after"]
    assert times.parts == ["block_tables", "forward", "kv_append", "rest"]
    assert all(len(seconds) == 6 for parts in times.seconds.values() for seconds in parts.values())
    with pytest.raises(ConfigError, match="0 of them: give 1 or more"):
        decode_anatomies(engines, sessions, turns=0)


def stored(rng, append_after, drift=1.0):
    """Samples of 15 turns of 4 steps, with some noise: a forward of 2 ms, an append of 1 ms before."""

    def part(milliseconds):
        return (1e-3 * milliseconds * rng.lognormal(0, 0.05, 60)).tolist()

    rest = {"block_tables": 0.1, "forward": 2.0, "rest": 0.5}
    before = {name: part(ms) for name, ms in rest.items()} | {"kv_append": part(1.0)}
    after = {name: part(ms / drift) for name, ms in rest.items()} | {"kv_append": part(append_after / drift)}
    return StepTimes({"before": before, "after": after})


def test_what_no_lesson_touched_is_compared_first():
    times = stored(np.random.default_rng(1), append_after=0.5)
    untouched, changed, share = times.sentences(["kv_append"])
    assert untouched.startswith("Untouched, block tables and forward and sample and the rest: 2.6")
    assert untouched.endswith("no difference measurable here.")
    assert changed.startswith("Changed, KV append: 0.99 ms before, 0.51 ms after, 1.9")
    assert changed.endswith("faster.")
    assert "28% before, 16% after" in share
    assert "1.38 times as fast" in share
    ratio = times.ratio("kv_append")
    assert 1.9 < ratio.low < ratio.high < 2.1


def test_where_the_same_code_takes_another_time_no_gain_is_claimed():
    for drift, verdict in ((1.15, "faster"), (0.87, "slower")):
        untouched, verdict_on_all = stored(np.random.default_rng(2), append_after=0.5, drift=drift).sentences(
            ["kv_append"]
        )
        assert untouched.endswith(f"{verdict}.")
        assert verdict_on_all.endswith("no gain is claimed from this picture.")


def test_a_ratio_is_of_turns_and_not_of_steps():
    """One step in each turn is slow: the turn's median passes over it."""
    steps = [1e-3, 1e-3, 1e-3, 9e-3] * 10
    times = StepTimes({"before": {"forward": steps}, "after": {"forward": [1e-3] * 40}})
    assert times.ratio("forward").value == pytest.approx(1.0)
    assert times.milliseconds("after") == {"forward": pytest.approx(1.0)}
    assert times.milliseconds("before") == {"forward": pytest.approx(1.0)}
    assert times.share("before", "forward") == 1.0


def test_a_machine_that_is_slow_at_times_is_slow_for_all():
    """Slow turns of both, but one more of the first: a median over all steps would say 1.0 against 2.0 ms."""
    slow, fast = [2e-3] * 4, [1e-3] * 4
    seconds = {"before": slow * 6 + fast * 5, "after": slow * 5 + fast * 6}
    times = StepTimes({name: {"forward": steps} for name, steps in seconds.items()})
    assert times.step_ms("before") / times.step_ms("after") == pytest.approx(17 / 16)


def test_two_rungs_of_a_ladder_are_compared_turn_by_turn():
    rungs = {
        name: {"forward": [ms * 1e-3] * 8, "kv_append": [ms * 2e-3] * 8} for name, ms in (("a", 1), ("b", 2), ("c", 4))
    }
    steps = LadderSteps(StepTimes(rungs), {}, {}, 0.1, 1, 1, {}, "a GPU")
    found = steps.between("c", "a")
    assert list(found.seconds) == ["before", "after"]
    assert found.ratio("forward").value == pytest.approx(4.0)


# -- steps with other stages ---------------------------------------------------------------------------------------

UP_TO_062 = ("block_tables", "forward", "kv_append")
AT_063 = ("place", "copy_blocks", "block_tables", "forward")
TO_063 = ["step", "forward", "kv_append", "copy_blocks"]
FROM_064 = ("place", "copy_blocks", "plan", "forward")
FROM_066 = ("place", "copy_blocks", "plan", "runner")
TO_066 = ["cache", "step", "rows", "runner"]


@pytest.mark.parametrize(
    ("before", "after", "changed", "found"),
    [
        (UP_TO_062, UP_TO_062, ["kv_append"], {"kv_append"}),
        (UP_TO_062, UP_TO_062, ["cache", "block_tables", "kv_append"], {"block_tables", "kv_append"}),
        (UP_TO_062, AT_063, TO_063, {"place", "copy_blocks", "forward", "kv_append", "rest"}),
        (AT_063, FROM_064, ["step", "block_tables", "rows"], {"block_tables", "plan", "rest"}),
        (FROM_064, FROM_066, TO_066, {"place", "plan", "forward", "runner", "rest"}),
        (FROM_066, FROM_066, ["runner"], {"runner"}),
        (FROM_066, FROM_066, ["forward"], {"runner", "rest"}),  # which is called by the runner
        (FROM_066, FROM_066, ["kv_append"], {"runner", "rest"}),
        (FROM_064, FROM_064, ["copy_blocks"], {"copy_blocks"}),
        (FROM_064, FROM_064, ["kv_append"], {"forward", "rest"}),  # which is called by the forward
        (FROM_064, FROM_064, ["rows"], {"plan", "rest"}),
        (FROM_064, FROM_064, ["cache"], {"place"}),
        (AT_063, FROM_064, [], {"block_tables", "plan", "rest"}),  # whoever has replaced the stages
        (FROM_064, FROM_064, [], set()),
    ],
)
def test_what_a_lesson_may_change(before, after, changed, found):
    assert touched(before, after, changed) == found
    assert touched(after, before, changed) == found


def test_the_ladders_own_lessons_leave_something_alone(small_model):
    """A stage that is the same before and after shows whether the machine was."""
    stages = {}
    for rung in LESSONS:
        engine = InferenceEngine(small_model, EngineConfig(prefix_cache=False), rung.after)
        stages[rung.number] = engine.decode_step.stages
    for before, rung in pairwise(LESSONS):
        both = stages[before.number], stages[rung.number]
        found = touched(*both, rung.changes)
        assert {*both[0], *both[1], "rest"} - found, rung.number
        assert found, rung.number


def parted(milliseconds, seed=3):
    """Samples of 15 turns of 4 steps, with some noise, of parts that take so long."""
    rng = np.random.default_rng(seed)
    return {part: (1e-3 * ms * rng.lognormal(0, 0.05, 60)).tolist() for part, ms in milliseconds.items()}


def test_where_stages_come_and_go_what_was_replaced_is_compared_as_a_whole():
    before = {"place": 0.1, "copy_blocks": 0.05, "block_tables": 0.6, "forward": 2.0, "rest": 0.4}
    after = {"place": 0.1, "copy_blocks": 0.05, "plan": 0.2, "forward": 2.0, "rest": 0.3}
    times = StepTimes({"before": parted(before, 3), "after": parted(after, 4)})
    assert times.parts == ["place", "copy_blocks", "plan", "block_tables", "forward", "rest"]
    untouched, replaced, share = times.sentences(["step", "block_tables", "rows"])
    assert untouched.startswith("Untouched, place and copy blocks and forward: 2.1")
    assert untouched.endswith("no difference measurable here.")
    told = "Replaced, block tables and sample and the rest by plan rows and sample and the rest: "
    assert replaced.startswith(f"{told}1.01 ms before, 0.51 ms after, 1.9")
    assert replaced.endswith("faster.")
    assert share.startswith("Their share of a step: 32% before, 19% after. Had they taken no time, a step would have")
    assert times.ratio("block_tables", "plan").value == pytest.approx(3.0, rel=0.05)
    with pytest.raises(ConfigError, match=r"a step has none of the parts .*plan.*: it has place, copy_blocks"):
        times.ratio("plan")


@pytest.mark.parametrize("change", [0.5, 1.0, 2.0])
def test_what_takes_next_to_no_time_does_not_tell_of_the_machine(change):
    """Where nothing but the copies is left alone, and mostly there are none: about a microsecond of a step."""
    before = {"place": 0.1, "copy_blocks": 0.001, "plan": 0.1, "forward": 2.0, "rest": 0.4}
    after = {"place": 0.1, "copy_blocks": 0.001 * change, "plan": 0.1, "runner": 0.2, "rest": 0.7}
    times = StepTimes({"before": parted(before, 3), "after": parted(after, 4)})
    untouched, warning, replaced, _ = times.sentences(TO_066)
    assert untouched.startswith("Untouched, copy blocks: 0.00 ms before, 0.00 ms after")
    assert warning == "That is too little of a step to show whether the machine was the same."
    told = "Replaced, place and plan rows and forward and sample and the rest by "
    assert replaced.startswith(f"{told}place and plan rows and runner and sample and the rest: 2.6")


def test_parts_that_are_no_stages_are_told_by_where_their_time_is_spent():
    """A cache with stages of its own name; an append inside the forward."""
    same = {"place": 0.1, "copy_blocks": 0.05, "plan": 0.2, "forward": 2.0, "rest": 0.3}
    times = StepTimes({"before": parted(same, 3), "after": parted(same | {"forward": 1.0}, 4)})
    untouched, forward, _, rest, _ = times.sentences(["kv_append"])
    assert untouched.startswith("Untouched, place and copy blocks and plan rows: 0.3")
    assert forward.startswith("Changed, forward: 1.99 ms before, 1.00 ms after, 1.9")
    assert rest.startswith("Changed, sample and the rest: 0.3")


def test_where_nothing_is_left_alone_that_is_said():
    times = StepTimes({"before": parted({"forward": 2.0, "rest": 0.3}), "after": parted({"plan": 1.0, "rest": 0.3})})
    first, replaced, _ = times.sentences(["step"])
    assert first == "No part of the step is the same before and after: nothing shows whether the machine was."
    assert replaced.startswith("Replaced, forward and sample and the rest by plan rows and sample and the rest: 2.3")
