"""Lesson 068's deliveries are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

from collections import Counter

import matplotlib.pyplot as plt
import pytest
import torch

from rosecourse import EngineConfig, lesson
from rosecourse.decode import BEST
from rosecourse.engine.stepper import End, NewTokenItem
from rosecourse.lab import check
from rosecourse.lab.course.l068 import BURSTS, NAMES
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lab.exercises.racing import race
from rosecourse.lab.world import reading_threads
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.delivery_log import DeliveryLog, LoggedBox, WakesSeen
from rosecourse.lab.world.delivery_oracle import DeliveryOracle
from rosecourse.lab.world.delivery_scenarios import SIZES, of_one, of_own
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lab.world.in_turns import MOST_WAKES, InTurns
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.mailboxes import Box
from rosecourse.lab.world.worlds import DELIVERY as WORLD
from tests.support.cells import (
    assert_untouched_is_right,
    command_on_solution,
    exercise_of,
    solution_of,
)
from tests.support.costly_deliveries import WITHOUT_THE_IDEA
from tests.support.delivery_parts import RIGHT, Base, QueueAndSet
from tests.support.verdicts import assert_right_but_costly, judged
from tests.support.wrong_deliveries import WRONG_ENDS, ABookOfItsOwn, FlushesNothing, Raises
from tests.support.wrong_puts import WRONG_PUTS, NoEnds, PutsTwice
from tests.support.wrong_turns import WRONG_TURNS

WRONG = WRONG_PUTS + WRONG_TURNS + WRONG_ENDS


def oracle_of(part):
    return DeliveryOracle(Learner(part, WORLD.called_with), SIZES)


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "068")
    assert verdict.passed, verdict


@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_delivery_is_refused_with_its_cause(part):
    assert not judged(part, "068").correct


@pytest.mark.grid(2)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: f"{part.__module__}.{part.__name__}")
def test_what_wakes_more_than_the_idea_leaves_is_told(part):
    assert_right_but_costly(judged(part, "068"), WITHOUT_THE_IDEA[part])


def test_the_untouched_exercise_is_right_and_has_the_idea_not_yet():
    assert_untouched_is_right("068")


def test_a_verdict_says_what_was_tried():
    said = str(check(QueueAndSet, "068"))
    assert f"{len(WORLD.scenarios)} stories" in said
    assert "a whole engine with 30 threads that read 38 requests: each token once and in order" in said


def test_the_hunts_mended_delivery_lives_through_every_story():
    for scenario in WORLD.scenarios:
        scenario.story(DeliveryOracle(Learner(hunt("068").mended, WORLD.called_with), scenario.sizes))


def test_the_command_takes_a_delivery(tmp_path, capsys, monkeypatch, small_model):
    monkeypatch.setattr("rosecourse.lab.exercises.racing.load_model", lambda: small_model)
    said = command_on_solution("068", tmp_path, capsys)
    assert "by your part: 8, and no token waits longer than" in said


def test_the_exercise_the_check_and_the_engines_own_delivery_wake_as_many():
    assert exercise_of("068").most_wakes == solution_of("068").most_wakes == MOST_WAKES
    log = DeliveryLog()
    boxes = [LoggedBox(str(n), "asleep", log) for n in range(20)]
    delivery = InTurns(EngineConfig())
    for left in (12, 4, 0):
        log.begin(hand_over=True)
        delivery.hand_over([(box, "word") for box in boxes] if left == 12 else [])
        log.handed_over()
        assert len(log.waiting) == left
    assert log.seen() == WakesSeen(most=MOST_WAKES)


def test_the_engines_own_delivery_has_no_clock_here_and_a_learners_stays_what_it_is():
    parts, device = lesson("068").after, torch.device("cpu")
    assert parts.delivery is BEST.delivery
    assert WORLD.engine(parts, device).delivery is InTurns
    mine = parts.with_(delivery=Base)
    assert WORLD.engine(mine, device) is mine


# -- the judges -------------------------------------------------------------------------------------------------------


def test_a_reader_is_overdue_when_all_who_have_waited_beside_it_had_a_turn():
    log = DeliveryLog()
    first, *others = (LoggedBox(str(n), "asleep", log) for n in range(6))

    def hand_over(put, wake):
        log.begin(hand_over=True)
        for box in put:
            box.put("word")
        for box in wake:
            box.wake()
        log.handed_over()
        return log.overdue(2)

    assert hand_over([first, *others[:3]], others[:2]) == []
    assert hand_over([others[0]], [others[2], others[0]]) == [("0", 2, 2)]
    assert hand_over([others[3], others[4]], [others[3], others[4]]) == [("0", 3, 3)]
    assert hand_over([], [first]) == []


def test_a_mailbox_in_which_nothing_lies_is_false_as_the_engines_are():
    for box in (Box("A"), LoggedBox("A", "asleep", DeliveryLog())):
        assert not box
        box.put("word")
        assert box
        box.wake()
        assert not box


def test_a_reader_who_never_reads_and_one_who_never_sleeps():
    log = DeliveryLog()
    gone, awake = (LoggedBox("A", kind, log) for kind in ("gone", "awake"))
    for box in (gone, awake):
        box.put("word")
        box.wake()
    assert (len(gone), len(awake)) == (1, 0)


def test_the_stories_have_readers_of_all_kinds_and_more_than_are_woken():
    seen, most = Counter(), []

    class Notes(Base):
        def hand_over(self, items):
            seen.update({box.kind for box, _ in items})
            seen.update("end" for _, item in items if isinstance(item, End))
            seen["nothing"] += not items
            shared = Counter(box for box, _ in items)
            seen["shared"] += any(isinstance(item, NewTokenItem) and shared[box] > 2 for box, item in items)
            super().hand_over(items)
            most.append(len(self.waiting))

        def flush(self):
            seen["flush of many"] += len(self.waiting) > 8
            super().flush()

    for scenario in WORLD.scenarios:
        scenario.story(DeliveryOracle(Learner(Notes, WORLD.called_with), scenario.sizes))
    assert all(seen[kind] >= 5 for kind in ("asleep", "awake", "gone", "end", "nothing", "shared", "flush of many"))
    assert max(most) > 100


def test_what_was_put_off_is_told_from_what_is_lost():
    class LateOrNever(Base):
        late = True

        def __init__(self, config):
            super().__init__(config)
            self.kept = []

        def hand_over(self, items):
            super().hand_over(items[:-1])
            self.kept = items[-1:] * self.late

        def flush(self):
            for box, item in self.kept:
                box.put(item)

    class Never(LateOrNever):
        late = False

    for part, cause in ((LateOrNever, Cause.ITEM_LATE), (Never, Cause.ITEM_LOST)):
        oracle = oracle_of(part)
        with pytest.raises(PartIsWrong) as wrong:
            oracle.step(*of_own(oracle, 3))
        assert wrong.value.fault.cause is cause


def test_one_wake_is_enough_for_a_reader_of_all():
    oracle = oracle_of(Base)
    oracle.step(*of_one(oracle, 12))
    assert oracle.wakes_seen() == WakesSeen(most=1)


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads(monkeypatch):
    """What is wrong in a whole engine with threads; little patience, since nothing else is at work."""
    monkeypatch.setattr(reading_threads, "PATIENCE", 1.0)
    learner_of = lambda part: Learner(part, WORLD.called_with)  # noqa: E731
    parts_with = lambda part: lesson("068").after.with_(delivery=part)  # noqa: E731
    return lambda part: reading_threads.read_by_threads(learner_of(part), parts_with)


@pytest.mark.parametrize(
    ("part", "causes"),
    [
        (NoEnds, {Cause.ITEM_LOST}),
        (PutsTwice, {Cause.ITEM_TWICE}),
        (Raises, {Cause.RAISES}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_threads_that_read_find_what_is_wrong(threads, part, causes):
    with pytest.raises(PartIsWrong) as wrong:
        threads(part)
    assert wrong.value.fault.cause in causes


def test_a_reader_that_is_left_asleep_is_found_and_nobody_waits_for_ever(threads):
    class WakesNobody(FlushesNothing):
        most_wakes = 0

    with pytest.raises(PartIsWrong, match=r"reader \w+ sleeps, and \d+ items lie in its mailbox: nobody wakes it"):
        threads(WakesNobody)


# -- the race ---------------------------------------------------------------------------------------------------------


def test_wakes_race_and_time_does_not(small_model):
    found = race(QueueAndSet, "068", small_model)
    assert list(found.counts) == ["lesson 067", "QueueAndSet", "lesson 068"]
    assert [(one.each, one.longest) for one in found.counts.values()] == [(24, 0), (8, 2), (8, 2)]
    assert "Nothing is timed: what a wake costs depends on the machine" in str(found)
    assert "by your part: 8, and no token waits longer than 2 steps" in str(found)
    assert found.table()["wakes in a step"].tolist() == [24, 8, 8]
    assert "<table" in found._repr_html_()
    _, ax = plt.subplots()
    found.draw(ax)
    assert [text.get_text() for text in ax.texts] == ["8", "8", "24"]
    plt.close()


@pytest.mark.parametrize("part", [ABookOfItsOwn, hunt("068").part, PutsTwice])
def test_a_wrong_delivery_does_not_race(part, small_model):
    found = race(part, "068", small_model)
    assert f'Nothing was timed: check({part.__name__}, "068") says what is wrong' in found.trouble


# -- the hunt ---------------------------------------------------------------------------------------------------------


def test_the_hunts_delivery_forgets_those_who_were_asleep_when_the_work_ended(model):
    right, broken = ([*map(Counter, moments)] for moments in zip(*played(model), strict=True))
    assert len(right) == len(broken)
    behind = [{name for name in NAMES if broken[n][name] < right[n][name]} for n in range(len(right))]
    first = next(n for n, names in enumerate(behind) if names)
    assert not any(behind[:first])
    assert all(names == behind[first] for names in behind[first:])
    assert len(behind[first]) == 1


def played(model):
    """How much each reader has read, moment by moment, with the right delivery and the broken one."""
    right, broken = hunt("068").engines(model)
    for ours, theirs in zip(hunt("068").scene(right), hunt("068").scene(broken), strict=True):
        yield ({name: len(box.read) for name, box in each.items()} for each in (ours, theirs))


@pytest.mark.parametrize(("readers", "forgotten"), [(7, 0), (8, 0), (9, 1), (10, 2), (13, 5)])
def test_the_hunts_delivery_is_right_with_eight_readers(readers, forgotten):
    delivery = hunt("068").part(EngineConfig())
    boxes = [Box(str(n)) for n in range(readers)]
    for _ in range(2):
        delivery.hand_over([(box, "word") for box in boxes])
        delivery.flush()
    assert sum(bool(box.items) for box in boxes) == forgotten


def test_the_hunts_questions_have_their_answers():
    bug = hunt("068")
    truth = bug._truth
    (reader,), (other,) = truth["reader"], truth["other"]
    assert reader in BURSTS[1]
    assert other not in BURSTS[1] | BURSTS[2]
    line = next(n for n, text in enumerate(bug.source.splitlines(), 1) if "self.pages = []" in text and n > 20)
    said = bug.answer(reader=reader, moment=int(*truth["moment"]), other=other, line=line)
    assert said.found, said
    assert "reader: it is not A." in str(bug.answer(reader="A"))


def test_the_scene_is_played_without_a_clock(small_model):
    right, _ = hunt("068").engines(small_model)
    assert isinstance(right.delivery, InTurns)
