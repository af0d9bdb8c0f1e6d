"""The ladder: each lesson changes as few parts as its idea needs, in a short diff of the live source."""

import itertools
import re

import pytest

from rosecourse import BASELINE, BEST, LESSONS, EngineConfig, LessonError, lesson
from rosecourse.measure.timeline import STEP_KINDS

ARTICLES = ["035", "036", "038", "059", "060", "061"]  # of the articles, one part each
# The most lines that a part of the second half may add; 062 brings in the cache that stays.
MOST_ADDED = {"cache": 180, "rows": 110, "step": 40, "runner": 80, "ops": 50}
NEW_NAMES = {("063", "step")}  # K and V are no longer appended after the forward, so the step's name goes


def changed_lines(rung):
    """For each part of a lesson the lines that its diff adds and removes."""
    found, name = {}, None
    for line in rung.diff().splitlines():
        if header := re.fullmatch(r"--- (\w+) before \d+", line):
            name = header[1]
            found[name] = [], []
        elif re.match(r"[+-](?![+-])", line):
            found[name][line[0] == "-"].append(line[1:])
    return found


def test_the_ladder_leads_from_the_baseline_to_the_best():
    assert LESSONS[0].before == LESSONS[0].after == BASELINE
    assert LESSONS[-1].after == BEST
    for before, after in itertools.pairwise(LESSONS):
        assert after.before == before.after
        assert 1 <= len(after.changes) <= (1 if after.number in ARTICLES else 5)
    assert lesson("best") is LESSONS[-1]
    assert [lesson(rung.number) for rung in LESSONS] == LESSONS
    with pytest.raises(LessonError) as caught:
        lesson("042")
    known = ", ".join(rung.number for rung in LESSONS)
    assert str(caught.value) == f"there is no lesson '042': give one of {known}, 073, 074, 075, 076, or best"
    assert [rung.number for rung in LESSONS if rung.step_kind == "boundary"] == ["059"]
    assert {rung.step_kind for rung in LESSONS} <= set(STEP_KINDS)


@pytest.mark.parametrize("rung", LESSONS[1:], ids=lambda rung: rung.number)
def test_a_part_that_is_replaced_keeps_its_names(rung):
    """In their order, so that its diff is short, and a reader knows it again."""
    for name in rung.changes:
        old, new = getattr(rung.before, name), getattr(rung.after, name)
        if old is None or new is None:
            continue
        assert (old.__name__ == new.__name__) is ((rung.number, name) not in NEW_NAMES)
        shared = [each for each in vars(old) if each in vars(new)]
        assert shared == [each for each in vars(new) if each in vars(old)]


@pytest.mark.parametrize("rung", LESSONS[1:], ids=lambda rung: rung.number)
def test_a_lesson_is_a_short_diff_of_the_live_source(rung):
    changed = changed_lines(rung)
    assert list(changed) == rung.changes
    for name, (added, removed) in changed.items():
        assert added or removed
        assert not removed or getattr(rung.before, name) is not None
        assert not added or getattr(rung.after, name) is not None
        most = 30 - len(removed) if rung.number in ARTICLES else MOST_ADDED.get(name, 30)
        assert len(added) <= most


def test_a_diff_has_lines_of_both_sides():
    assert LESSONS[0].diff() == ""
    diff = lesson("038").diff()
    assert "-            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])" in diff
    assert "+            self.write(layer_idx, fast_batch_idx" in diff


def test_a_notebook_builds_both_engines(small_model):
    rung = lesson("059")
    before, after = rung.engines(small_model, EngineConfig(block_size=8, max_batch_size=3))
    assert type(before.decode_step.kv_append) is rung.before.kv_append
    assert type(after.decode_step.kv_append) is rung.after.kv_append
    assert before.model is after.model is small_model
    assert before.kv is not after.kv
    assert (before.config.block_size, after.config.max_batch_size) == (8, 3)
