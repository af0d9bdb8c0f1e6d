"""The ladder: each lesson changes one part of the one before, in a short diff of the live source."""

import itertools
import re

import pytest

from rosecourse import BASELINE, BEST, LESSONS, DecodeParts, EngineConfig, LessonError, lesson
from rosecourse.measure.timeline import STEP_KINDS


def test_the_ladder_ends_with_the_best_parts():
    assert LESSONS[-1].after == BEST
    assert LESSONS[0].before == LESSONS[0].after == BASELINE
    assert lesson("best") is LESSONS[-1]
    assert [lesson(rung.number) for rung in LESSONS] == LESSONS
    assert BEST.with_(forward=str) == DecodeParts(BEST.cache, BEST.step, BEST.block_tables, str, BEST.kv_append)


def test_each_lesson_changes_one_part_of_the_one_before():
    assert [rung.number for rung in LESSONS] == ["035", "036", "038", "059", "060", "061"]
    for before, after in itertools.pairwise(LESSONS):
        assert after.before == before.after
        assert len(after.changes) == 1
        old, new = (getattr(rung.after, after.changes[0]) for rung in (before, after))
        assert old.__name__ == new.__name__
        shared = [name for name in vars(old) if name in vars(new)]
        assert shared == [name for name in vars(new) if name in vars(old)]  # the same order: a short diff


def test_a_lesson_is_one_short_diff_of_the_live_source():
    assert LESSONS[0].diff() == ""
    for rung in LESSONS[1:]:
        lines = rung.diff().splitlines()
        changed = [line for line in lines if re.match(r"[+-](?![+-])", line)]
        assert lines[0] == f"--- {rung.changes[0]} before {rung.number}"
        assert 0 < len(changed) <= 30
    assert "-            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])" in lesson("038").diff()
    assert "+            self.write(layer_idx, fast_batch_idx" in lesson("038").diff()


def test_a_notebook_shows_the_diff_and_builds_both_engines(small_model):
    rung = lesson("059")
    shown = rung.show_diff()
    assert str(shown) == rung.diff()
    assert shown._repr_markdown_() == f"```diff\n{rung.diff()}```"
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
    assert LESSONS[-1].then("062", "x", LESSONS[-1].workload, step_kind="boundary").step_kind == "boundary"
