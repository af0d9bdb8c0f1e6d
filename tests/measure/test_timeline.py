"""Timelines of a decode step: stored small, refused when damaged, and what they say of the parts left alone."""

import json

import pytest

from rosecourse.measure.timeline import STEP, Range, Timeline, untouched_sentence
from tests.support.timelines import FORWARD, PLAN, TABLES, large


def test_a_document_is_small_and_comes_back_whole():
    for one in (large(200), large(99, 1900.0, 1)._replace(step_kind="boundary", context=64)):
        text = json.dumps(one.document(), separators=(",", ":"))
        assert len(text) < 5_000
        assert Timeline.of(json.loads(text)) == one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("ranges"), "not of the form"),
        (lambda d: d.pop("step_kind"), "not of the form"),
        (lambda d: d.update(step_kind="odd"), "a timeline of a step 'odd'"),
        (lambda d: d.update(context=0), "with 0 positions"),
        (lambda d: d.update(context=1.5), "with 1.5 positions"),
        (lambda d: d.update(ranges=[]), "without a step"),
        (lambda d: d["ranges"].pop(0), "without a step"),
        (lambda d: d["ranges"][0].__setitem__(2, 0), "without a step"),
        (lambda d: d.update(plain=0), "without a step"),
        (lambda d: d["ranges"][1].__setitem__(2, 28_000), "ends after its step"),
        (lambda d: d["ranges"][1].__setitem__(0, 3), "is no text"),
        (lambda d: d["ranges"][1].pop(), ""),
        (lambda d: d.update(device=None), "is no text"),
        (lambda d: d["kernels"].pop(), "zip()"),
        (lambda d: d["kernels"].__setitem__(0, 99), "not of the form"),
        (lambda d: d["kernels"].__setitem__(0, -1), "a time in a timeline is -1"),
        (lambda d: d["kernels"].__setitem__(1, -5), "a time in a timeline is -5"),
        (lambda d: d["kernels"].__setitem__(2, 1.5), "a time in a timeline is 1.5"),
        (lambda d: d["kernels"].__setitem__(2, True), "a time in a timeline is True"),
        (lambda d: d["kernel_names"][0].__setitem__(0, "odd"), "of the kind 'odd'"),
        (lambda d: d["kernel_names"][0].__setitem__(1, 5), "is no text"),
    ],
)
def test_a_document_of_another_form_is_refused(change, message):
    document = large().document()
    change(document)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is looked at below)
        Timeline.of(document)
    assert message in str(caught.value)


def test_what_lies_in_other_ranges_is_not_left_alone():
    """As at 064: the block tables went and a plan came; whatever is in no range may have taken over some of it."""

    def one(name, forward_us):
        ranges = [(STEP, 0, 9000), (name, 10, 50), (FORWARD, 100, forward_us)]
        return Timeline(tuple(Range(*r) for r in ranges), (), "a GPU", 5000.0)

    sides = {"before": one(TABLES, 3000.0), "after": one(PLAN, 4000.0)}
    told = untouched_sentence(sides, ["step", "block_tables", "rows"])
    assert "3.00 ms in the step before and 4.00 ms in the one after" in told
    told = untouched_sentence(sides, ["step", "forward", "block_tables"])
    assert told.startswith("The lesson leaves no range of the host alone: a timeline is one step")


def test_what_the_lesson_leaves_alone_is_said_beside_its_timelines():
    def one(forward_us):
        ranges = [
            (STEP, 0, 9000),
            ("roseinfer.model.forward", 100, forward_us),
            ("roseinfer.kv.append_token", 8000, 500),
        ]
        return Timeline(tuple(Range(*r) for r in ranges), (), "a GPU", 5000.0)

    told = untouched_sentence({"before": one(3000.0), "after": one(4000.0)}, ["kv_append"])
    assert told.startswith(
        "What the lesson leaves alone took the host 8.50 ms in the step before and 8.50 ms in the one"
    )
    told = untouched_sentence({"before": one(3000.0), "after": one(4000.0)}, ["kv_append", "step"])
    assert "3.00 ms in the step before and 4.00 ms in the one after" in told
