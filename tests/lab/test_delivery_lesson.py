"""Lesson 068's deliveries: right ones pass, and small differences against the course's part are refused."""

from collections import Counter

import pytest
import torch

from rosecourse import lesson
from rosecourse.decode import BEST
from rosecourse.lab import check
from rosecourse.lab.checking.deliveries import MOST_WAKES, Box, DeliveryInTurns, DeliveryStories, InTurns, Reader
from rosecourse.lab.course.l068 import BURSTS, NAMES
from rosecourse.lab.exercises.hunting import hunt
from rosecourse.lessons import l035
from tests.support.cells import command_on_solution, exercise_of, part_in, solution, solution_of
from tests.support.delivery_parts import RIGHT, QueueAndSet
from tests.support.verdicts import judged, operations_of

INIT = "self.waiting: dict[\n            Mailbox, None\n        ] = {}"
LOOP = "for mailbox, item in items:"
PUT, ENTER, TURN = "mailbox.put(item)", "self.waiting[mailbox] = None", "self._wake(self.most_wakes)"
FLUSH, WHO, LEAVE = "self._wake(len(self.waiting))", "list(self.waiting)[:most]", "del self.waiting[mailbox]"
WAKE, NEXT = "mailbox.wake()", "\n        "

WRONG = {  # fault -> pairs of texts in the solution
    # puts
    "no ends": [(PUT, f"type(item) is End or {PUT}")],
    "the last hand-over again": [
        (INIT, f"self.old = []; {INIT}"),
        (LOOP, f"self.old, items = items, [*self.old, *items]{NEXT}{LOOP}"),
    ],
    "ends first": [(LOOP, "for mailbox, item in sorted(items, key=lambda pair: type(pair[1]) is not End):")],
    "one mailbox off": [(LOOP, "for (mailbox, _), (_, item) in zip(items[1:] + items[:1], items):")],
    "bare tokens": [(PUT, "mailbox.put(getattr(item, 'token_id', item))")],
    "takes from the list": [(LOOP, "while items:\n            mailbox, item = items.pop(0)")],
    "puts with the wake": [(PUT, f"mailbox in [*self.waiting][self.most_wakes:] or {PUT}")],
    # turns
    "the newest first": [(WHO, "list(self.waiting)[: -1 - most : -1]")],
    "back to the end": [(ENTER, "self.waiting.pop(mailbox, 0); self.waiting[mailbox] = None")],
    "always the first": [(WHO, "sorted(self.waiting, key=lambda one: (len(one.name), one.name))[:most]")],
    "every second hand-over": [(INIT, f"self.n = 0; {INIT}"), (TURN, "self.n += 1; self._wake((self.n + 1) % 2 * 16)")],
    "only with items": [(TURN, f"if items: {TURN}")],
    "wakes first": [(LOOP, f"{TURN}{NEXT}{LOOP}"), (f"place{NEXT}{TURN}", "place")],
    "room for 64": [(TURN, f"self.waiting = dict([*self.waiting.items()][-64:]); {TURN}")],
    "by the request": [(ENTER, "self.waiting[item.session] = mailbox"), (LEAVE, "mailbox = self.waiting.pop(mailbox)")],
    "stops at one who reads": [(LEAVE, f"if not mailbox: break\n            {LEAVE}")],
    "forgets who has come since": [(TURN, f"{TURN}; [self.waiting.pop(one, 0) for one, _ in items[:2]]")],
    # flushes
    "flushes a few": [(FLUSH, TURN)],
    "flushes once": [(INIT, f"self.done = False; {INIT}"), (FLUSH, f"self.done or {FLUSH}; self.done = True")],
    "flush forgets": [(FLUSH, "self.waiting.clear()")],
    # what it is and keeps
    "no flush": [("def flush", "def flash")],
    "wants the model": [("config: EngineConfig", "model, kv, config")],
    "one queue of all engines": [(INIT, "pass"), ("most_wakes = 8", "most_wakes = 8; waiting = {}")],
    "keeps all readers": [(INIT, f"self.all = []; {INIT}"), (ENTER, f"{ENTER}; self.all.append(mailbox)")],
    "keeps the last ones": [(FLUSH, f"self.last = [*self.waiting]; {FLUSH}")],
    "reads itself": [(WAKE, "mailbox.take()")],
}
AT_ONCE = "for one in [one for one, item in items if type(item) is End and one in self.waiting]:"
SAVES = "self.saved += 8; n = len(self.waiting); self._wake(self.saved); self.saved -= n - len(self.waiting)"
AGAIN = "items and items[0][0] in self.waiting or [one.wake() for one, _ in items[:1]]"
MOST = "wakes at one hand-over: 9; with the course's part at most 8"
COSTLY = {
    "each once": ([("most_wakes = 8", "most_wakes = 1000")], MOST),
    "one more": ([("most_wakes = 8", "most_wakes = 9")], MOST),
    "those with ends at once": ([(TURN, f"{TURN}{NEXT}{AT_ONCE} self.waiting.pop(one, 0); one.wake()")], MOST),
    "saves up": ([(INIT, f"self.saved = 0; {INIT}"), (TURN, SAVES)], MOST),
    "the first one again": ([(TURN, f"{TURN}; {AGAIN}")], "for whom nothing had come"),
}


def with_changes(changes):
    """The solution with some texts of it replaced."""
    source = solution("068")
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return part_in(f"from collections import Counter\nfrom rosecourse.engine.stepper import End\n{source}")


@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_one_of_another_style_passes(part):
    verdict = check(part, "068")
    assert verdict.passed, verdict


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_delivery_is_refused_with_a_small_story(fault):
    verdict = judged(with_changes(WRONG[fault]), "068")
    assert verdict.wrong, verdict
    assert operations_of(verdict) <= 6, verdict


@pytest.mark.parametrize(
    ("part", "says"),
    [
        *((with_changes(changes), says) for changes, says in COSTLY.values()),
        *((part, "wakes at one hand-over: ") for part in (exercise_of("068"), l035.Delivery)),
    ],
)
def test_what_wakes_more_than_the_idea_leaves_is_told(part, says):
    verdict = judged(part, "068")
    assert verdict.correct, verdict
    assert any(says in line for line in verdict.missing), verdict


def test_the_command_takes_a_delivery(tmp_path, capsys):
    said = command_on_solution("068", tmp_path, capsys)
    assert "a whole engine with 30 threads that read: all get the tokens of the baseline" in said


def test_exercise_check_and_engine_wake_as_many():
    assert exercise_of("068").most_wakes == solution_of("068").most_wakes == MOST_WAKES
    model = DeliveryInTurns(InTurns)
    model.start("asleep", 20)
    for left in (12, 4, 0):
        model.step("all", 1) if left == 12 else model.nothing(1)
        assert len(model.waiting) == left
    assert (model.most, model.for_nothing) == (MOST_WAKES, 0)


def test_engines_delivery_has_no_clock_and_a_learners_stays():
    parts, device = lesson("068").after, torch.device("cpu")
    assert parts.delivery is BEST.delivery
    assert DeliveryStories.engine(parts, device).delivery is InTurns
    mine = parts.with_(delivery=QueueAndSet)
    assert DeliveryStories.engine(mine, device) is mine


def test_mailbox_that_is_empty_is_false_as_the_engines_are():
    for box in (Box("A"), Reader("A", "asleep", DeliveryInTurns(QueueAndSet))):
        assert not box
        box.put("word")
        assert box
        box.wake()
        assert not box


# -- the hunt ---------------------------------------------------------------------------------------------------------


def test_hunts_delivery_forgets_those_asleep_when_work_ends(model):
    right, broken = ([*map(Counter, moments)] for moments in zip(*played(model), strict=True))
    behind = [{name for name in NAMES if broken[n][name] < right[n][name]} for n in range(len(right))]
    first = next(n for n, names in enumerate(behind) if names)
    assert all(names == behind[first] for names in behind[first:])
    assert len(behind[first]) == 1


def played(model):
    """How much each reader has read, moment by moment, with the right delivery and the broken one."""
    right, broken = hunt("068").engines(model)
    assert isinstance(right.delivery, InTurns)
    for ours, theirs in zip(hunt("068").scene(right), hunt("068").scene(broken), strict=True):
        yield ({name: len(box.read) for name, box in each.items()} for each in (ours, theirs))


def test_the_hunts_questions_have_their_answers():
    bug = hunt("068")
    assert judged(bug.mended, "068").correct
    assert not judged(bug.part, "068").correct
    truth = bug._truth
    (reader,), (other,) = truth["reader"], truth["other"]
    assert reader in BURSTS[1]
    assert other not in BURSTS[1] | BURSTS[2]
