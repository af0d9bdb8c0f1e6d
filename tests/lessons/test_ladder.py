"""The ladder: each lesson changes as few parts as its idea needs, in a short diff of the live source."""

import itertools
import re
from dataclasses import fields

import pytest

from rosecourse import BASELINE, BEST, LESSONS, DecodeParts, EngineConfig, LessonError, lesson
from rosecourse.measure.timeline import STEP_KINDS

ARTICLES = ["035", "036", "038", "059", "060", "061"]  # of the articles, one part each
SECOND_HALF = {
    "062": ["cache", "block_tables", "kv_append"],
    "063": ["step", "forward", "kv_append", "copy_blocks"],
    "064": ["step", "block_tables", "rows"],
    "065": ["copy_blocks"],
    "066": ["step", "rows", "runner", "device_step"],
    "067": ["step", "pipeline", "rows"],
    "068": ["pipeline", "prefill", "delivery", "rows"],
    "069": ["forward", "ops", "device_step"],
    "070": ["ops"],
    "071": ["forward", "pipeline", "ops", "runner"],
}
# The most lines that a part of the second half may add; 062 brings in the cache that stays.
MOST_ADDED = {"cache": 180, "rows": 110, "step": 40, "runner": 80, "ops": 50}
# Whose point is what is not needed any more.
REMOVE_MORE = {("062", name) for name in ("cache", "block_tables", "kv_append")} | {("063", "kv_append")}
REMOVE_MORE |= {("063", "forward")}
NEW_NAMES = {("063", "step")}  # K and V are no longer appended after the forward, so the step's name goes


def changed_parts():
    """(lesson, name of a part, the part before, the part after) for each change; a part that is not there is None."""
    return [
        (rung, name, getattr(rung.before, name), getattr(rung.after, name)) for rung in LESSONS for name in rung.changes
    ]


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


def test_the_ladder_ends_with_the_best_parts():
    assert LESSONS[-1].after == BEST
    assert LESSONS[0].before == LESSONS[0].after == BASELINE
    assert lesson("best") is LESSONS[-1]
    assert [lesson(rung.number) for rung in LESSONS] == LESSONS
    parts = {field.name: getattr(BEST, field.name) for field in fields(BEST)}
    assert BEST.with_(forward=str) == DecodeParts(**parts | {"forward": str})


def test_each_lesson_changes_as_few_parts_as_its_idea_needs():
    assert [rung.number for rung in LESSONS] == [*ARTICLES, *SECOND_HALF]
    for before, after in itertools.pairwise(LESSONS):
        assert after.before == before.after
        if after.number in ARTICLES:
            assert len(after.changes) == 1
        else:
            assert after.changes == SECOND_HALF[after.number]


def test_a_part_that_is_replaced_keeps_its_name_and_its_order():
    """So that its diff is short, and a reader knows it again."""
    for rung, name, old, new in changed_parts():
        if old is None or new is None:
            continue
        assert (old.__name__ == new.__name__) is ((rung.number, name) not in NEW_NAMES)
        shared = [each for each in vars(old) if each in vars(new)]
        assert shared == [each for each in vars(new) if each in vars(old)]


def test_a_lesson_is_a_short_diff_of_the_live_source():
    assert LESSONS[0].diff() == ""
    for rung in LESSONS[1:]:
        assert rung.diff().splitlines()[0] == f"--- {rung.changes[0]} before {rung.number}"
        changed = changed_lines(rung)
        assert list(changed) == rung.changes
        assert {name for number, name in REMOVE_MORE if number == rung.number} <= set(changed)
        for name, (added, removed) in changed.items():
            assert added or removed
            assert not removed or getattr(rung.before, name) is not None
            assert not added or getattr(rung.after, name) is not None
            if (rung.number, name) in REMOVE_MORE:
                assert len(added) < len(removed)
            if rung.number in ARTICLES:
                assert len(added) + len(removed) <= 30
            else:
                assert len(added) <= MOST_ADDED.get(name, 30)
    assert "-            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])" in lesson("038").diff()
    assert "+            self.write(layer_idx, fast_batch_idx" in lesson("038").diff()


def test_a_notebook_builds_both_engines(small_model):
    rung = lesson("059")
    config = EngineConfig(block_size=8, max_batch_size=3)
    before, after = rung.engines(small_model, config)
    assert (type(before.decode_step.kv_append), type(after.decode_step.kv_append)) == (
        rung.before.kv_append,
        rung.after.kv_append,
    )
    assert before.model is after.model is small_model
    assert before.kv is not after.kv
    assert (before.config.block_size, after.config.max_batch_size) == (8, 3)


def test_an_unknown_lesson_is_refused_with_the_known_ones():
    with pytest.raises(LessonError) as caught:
        lesson("042")
    assert str(caught.value) == f"there is no lesson '042': give one of {', '.join(r.number for r in LESSONS)}, or best"


def test_each_lesson_says_which_kind_of_step_it_is_about():
    assert [rung.number for rung in LESSONS if rung.step_kind == "boundary"] == ["059"]
    assert {rung.step_kind for rung in LESSONS} <= set(STEP_KINDS)
    assert LESSONS[-1].then("066", "x", LESSONS[-1].workload, step_kind="boundary").step_kind == "boundary"
