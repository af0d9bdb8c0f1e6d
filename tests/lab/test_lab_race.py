"""The race: equal tokens first, then figures with an interval, and sentences that say no more than they do."""

import asyncio
import re

import matplotlib.pyplot as plt
import pytest
import torch

from rosecourse import ConfigError, EngineConfig, LessonError, lesson
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises import racing
from rosecourse.lab.exercises.racing import Race, race, workload_of
from rosecourse.measure.compare import Conditions, Ladder
from rosecourse.measure.samples import Samples
from rosecourse.measure.workload import Run
from rosecourse.request.session import SessionTimes
from tests.support.drawn import assert_readable

INTERVAL = r"\[\d+\.\d{3,}, \d+\.\d{3,}\]"  # a bound next to 1 has more digits
RATIO = rf"\d+\.\d{{3}}x {INTERVAL}"


class SwapsKAndV(lesson("038").after.kv_append):
    def __call__(self, sessions, keys, values):
        super().__call__(sessions, values, keys)


class OnePosition(lesson("038").after.kv_append):
    """Right in a batch of equal lengths, which is what is timed."""

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        blk_t, pos = torch.tensor([info.block_index for info in infos]), infos[0].length
        self.kv.k_layers[layer_idx][blk_t, :, pos] = key_new[batch_idx]
        self.kv.v_layers[layer_idx][blk_t, :, pos] = value_new[batch_idx]


class Raises(lesson("038").after.kv_append):
    def __call__(self, sessions, keys, values):
        raise ValueError("not\nyet")


def ladder_of(seconds):
    """A ladder whose runs took so long: one list for each rung."""

    def run(total):
        stats = SchedulerStats(decode_seconds=total / 4, decode_steps=1)
        return Run(0.0, total, [SessionTimes(tokens=[0.75 * total, total])], [[1, 2]], stats)

    conditions = Conditions(1, 2, 1, 64, len(seconds[0]), "m", "float32", "a device", "2")
    names = ("before", "yours", "course")
    rungs = [Samples(name, [run(s) for s in each]) for name, each in zip(names, seconds, strict=True)]
    return Ladder(rungs, ["a", "b", "c"], conditions)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize(("number", "first"), [("036", "035"), ("038", "036"), ("062", "061"), ("063", "062")])
def test_a_part_that_is_the_one_before_can_race(number, first, small_model):
    before = COURSES[number].begins_as(lesson(number).before)
    found = race(before, number, small_model, rounds=2)
    assert [rung.name for rung in found.ladder.rungs] == ["before", "yours", "course"]
    assert list(found.table()["lesson"]) == [f"lesson {first}", before.__name__, f"lesson {number}"]
    lines = str(found).splitlines()
    assert len(lines) == 5
    assert lines[0] == "What is timed: whole runs, prefill and decode steps."
    who_beside = ("Your part against before", "The course's part against before", "Your part against the course's")
    for line, who in zip(lines[1:4], who_beside, strict=True):
        assert re.fullmatch(f"{who}: {RATIO}, and 2 rounds are too few to tell: take 5 or more.", line)
    assert lines[4].startswith("16 requests x 68 tokens; 1 warm-up and 2 counted runs of each, interleaved; small")
    assert repr(found) == str(found)  # a notebook stores it
    page = found._repr_html_()
    assert page.count("<table") == 1
    assert "<th>ratio to before</th>" in page
    assert "p99/p50" not in page  # it would not be the ratio of the two columns before it
    rates = found.table()["throughput (tokens/s)"]
    assert [f"<td>{rate:,.0f}</td>" in page for rate in rates] == [True] * 3
    assert page.count("<p>") == 5
    _, ax = plt.subplots()
    found.draw(ax)
    assert f"Lesson {number}: {before.__name__} on the ladder" in ax.get_title()
    names = [
        f"before: lesson {first}",
        "control: the same engine twice",
        f"yours: {before.__name__}",
        f"course: lesson {number}",
    ]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert all("too few runs to tell" in text.get_text() for text in ax.texts[2:])


def test_the_sentences_say_what_the_interval_allows():
    slow, fast = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0, 1.05, 0.95, 1.0, 1.02, 0.98]
    found = Race("038", "Mine", ladder_of([slow, slow, fast]))
    _, yours, course, beside, _ = found.sentences()
    assert yours == "Your part against before: 1.000x [1.000, 1.000], no difference measurable here."
    assert re.fullmatch(rf"The course's part against before: 2\.0\d\dx {INTERVAL}, faster than before\.", course)
    assert found.against_before() == "1.00x [1.00, 1.00], no difference"
    assert re.fullmatch(
        r"2\.0\dx \[\d\.\d\d, \d\.\d\d\]", Race("038", "Mine", ladder_of([slow, fast, fast])).against_before()
    )
    assert re.fullmatch(rf"Your part against the course's: 0\.[45]\d\dx {INTERVAL}, slower than the course's\.", beside)


def test_a_race_beside_other_work_says_so():
    quiet = [2.0, 2.1, 1.9, 2.0, 2.05]
    loaded = [2.0, 2.1, 1.9, 8.0, 2.05]
    found = Race("038", "Mine", ladder_of([quiet, loaded, quiet]))
    assert found.sentences()[4].startswith(
        "Noisy: runs of one part differ by a factor of 4.2. Other work on the machine"
    )
    assert found.against_before().endswith(", no difference, noisy")
    assert not any("Noisy" in line for line in Race("038", "Mine", ladder_of([quiet] * 3)).sentences())
    assert not Race("038", "Mine", ladder_of([each[:4] for each in (quiet, loaded, quiet)])).is_noisy  # too few to tell


def test_the_picture_shows_each_run_its_median_and_what_may_be_said():
    slow, fast = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0, 1.05, 0.95, 1.0, 1.02, 0.98]
    ladder = ladder_of([slow, slow, fast])
    _, ax = plt.subplots(figsize=(9, 3.8), layout="constrained")
    Race("038", "Mine", ladder).draw(ax)
    dots = [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"]
    assert dots == [rung.throughputs for rung in ladder.rungs]
    assert [bar.get_width() for bar in ax.patches] == [rung.throughput.value for rung in ladder.rungs]
    before, yours, course = (text.get_text() for text in ax.texts)
    assert before == "1 tokens/s"
    assert yours == "1 tokens/s\n1.00x [1.00, 1.00], no difference measurable"
    assert re.fullmatch(r"2 tokens/s\n2\.0\dx \[\d\.\d\d, \d\.\d\d\], faster", course)
    assert_readable(ax)


def test_the_race_of_059_is_on_the_step_in_which_every_request_begins_a_block(small_model):
    rung, track = lesson("059"), COURSES["059"].track
    found = race(rung.before.kv_append, "059", small_model, rounds=2)
    assert found.track is track
    for rung_of_the_race in found.ladder.rungs:
        assert [run.stats.decode_steps for run in rung_of_the_race.runs] == [5, 5]
    workload = workload_of(track, on_gpu=False)
    assert len(set(workload.prompts)) == len(workload.prompts) == 16
    engine = rung.engines(small_model, EngineConfig(max_batch_size=16, prefix_cache=False))[1]
    sessions = [engine.new_session(prompt, workload.requests[0].params) for prompt in workload.prompts]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for _ in range(4):
        held = [len(session.block_ids_per_layer[0]) for session in sessions]
        assert held == [1] * 16
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    assert [len(session.block_ids_per_layer[0]) for session in sessions] == [n + 1 for n in held]
    assert all(session.finished for session in sessions)


def test_the_race_of_065_is_on_the_step_in_which_samples_are_copied(small_model):
    rung, track = lesson("065"), COURSES["065"].track
    given = []

    class Notes(rung.after.copy_blocks):
        def __call__(self, copies):
            given.append(copies)
            super().__call__(copies)

    found = race(Notes, "065", small_model, rounds=1)
    assert found.track is track
    for rung_of_the_race in found.ladder.rungs:
        assert [run.stats.decode_steps for run in rung_of_the_race.runs] == [1]
    lists = [[copy.source for copy in copies] for copies in given[-2:]]  # of the warm-up, and of the run
    assert [len(sources) for sources in lists] == [28, 28]  # the last of 8 samples keeps the block
    assert all(sources.count(block) == 7 for sources in lists for block in sources)


def test_what_is_timed_is_what_is_shown():
    ladder, track = ladder_of([[2.0, 2.2], [1.0, 1.1], [1.0, 1.1]]), COURSES["059"].track
    found = Race("059", "Mine", ladder, track=track)
    assert [ratio.value for ratio in found.speedups] == pytest.approx([2.0, 2.0])
    assert list(found.table()["last step (ms)"]) == pytest.approx([525.0, 262.5, 262.5])
    assert str(found).startswith("What is timed: the last decode step, in which every request begins a block.\n")
    _, ax = plt.subplots()
    found.draw(ax)
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([525.0, 262.5, 262.5])
    assert "less is better" in ax.get_xlabel()
    assert [list(line.get_xdata()) for line in ax.lines if line.get_marker() == "o"] == [
        pytest.approx([500, 550]),
        pytest.approx([250, 275]),
        pytest.approx([250, 275]),
    ]
    assert "throughput (tokens/s)" in Race("038", "Mine", ladder).table()


def test_a_race_on_a_gpu_is_bounded():
    """At 30 ms a step, three engines and one round more than is counted."""
    for number, course in COURSES.items():
        track = course.track
        steps = 3 * (track.rounds + 1) * track.new_tokens[True]
        seconds = 0.03 * steps
        assert seconds < 40, number
        sessions = workload_of(track, on_gpu=True).prompts
        assert len(sessions) == (128 if number in ("061", "065") else 64)


@pytest.mark.parametrize("part", [SwapsKAndV, OnePosition, Raises])
def test_a_wrong_part_is_not_timed(part, small_model, monkeypatch):
    monkeypatch.setattr(racing, "compare_ladder", lambda *args, **more: pytest.fail("it was timed"))
    found = race(part, "038", small_model)
    assert found.ladder is None
    assert found.table().empty
    what = r"raised ValueError: not yet" if part is Raises else r"gives other tokens than before .* request \d .*"
    wanted = rf'{part.__name__} {what}\. Nothing was timed: check\({part.__name__}, "038"\) says what is wrong\.'
    assert re.fullmatch(wanted, str(found))
    assert found._repr_html_().count("<p>") == 1
    _, ax = plt.subplots()
    found.draw(ax)
    assert not ax.axison
    assert not ax.texts + ax.patches + ax.lines  # the sentence stands under it already
    with pytest.raises(ConfigError, match="nothing was timed"):
        _ = found.speedups


class Mute(BaseException):
    def __str__(self):
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("not yet"), "ValueError: not yet"),
        (GeneratorExit(), "GeneratorExit"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (Mute(), "Mute"),
    ],
)
@pytest.mark.parametrize("where", ["in the first tokens", "in the race itself"])
def test_whatever_a_part_raises_is_told_and_not_timed(error, says, where, small_model, monkeypatch):
    """Hazard 40: what is no `Exception` too, and what comes only when the clock runs."""

    class Late(lesson("038").after.kv_append):
        def __call__(self, sessions, keys, values):
            raise error

    if where == "in the race itself":
        monkeypatch.setattr(racing, "trouble_with", lambda *args: "")
    found = race(Late, "038", small_model, rounds=1)
    assert found.ladder is None
    assert str(found) == f'Late raised {says}. Nothing was timed: check(Late, "038") says what is wrong.'


def test_an_interrupt_of_a_race_is_one(small_model, monkeypatch):
    def interrupted(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(racing, "compare_ladder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        race(lesson("038").after.kv_append, "038", small_model, rounds=1)


def test_tokens_that_differ_in_the_race_itself_end_it(small_model, monkeypatch):
    monkeypatch.setattr(racing, "trouble_with", lambda *args: "")
    found = race(SwapsKAndV, "038", small_model, rounds=1)
    assert found.ladder is None
    assert "the engines give different tokens" in str(found)


def test_what_cannot_be_raced_is_refused(small_model):
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        race(SwapsKAndV, "042", small_model)
    with pytest.raises(LessonError, match="lesson 035 changes nothing"):
        race(SwapsKAndV, "035", small_model)
    with pytest.raises(ConfigError, match="rounds is 0"):
        race(SwapsKAndV, "038", small_model, rounds=0)
