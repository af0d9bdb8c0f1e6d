"""Recorded steps: the parts of every rung, its timelines, and which of them say something of a lesson."""

import copy

import pytest

from rosecourse import ConfigError, LessonError, RosecourseError
from rosecourse.models.gpt2 import GPT2Shape
from rosecourse.records.comparisons import recorded_ladder
from rosecourse.records.sealed import seal
from rosecourse.records.steps import recorded_steps, steps_of, steps_with
from rosecourse.records.timelines import recorded_timelines
from tests.support.recordings import steps_document, timeline_document, write_recording


@pytest.fixture
def results(tmp_path):
    write_recording(tmp_path / "nvidia-h200" / "A.steps.json", steps_document())
    return tmp_path


def test_the_steps_of_a_ladder_have_their_parts_their_floor_and_the_devices_time(results):
    found = recorded_steps("A", folder=results)
    assert found.times.milliseconds("035") == pytest.approx(dict.fromkeys(found.times.parts, 3.0))
    assert found.times.parts == ["block_tables", "forward", "kv_append", "rest"]
    assert [found.times.step_ms(number) for number in found.titles] == pytest.approx([12, 8, 4])
    assert found.times.chunk == 4
    assert found.floor_ms == pytest.approx(0.25)  # 1 GB at 4 TB/s
    assert found.busy_ms == pytest.approx({"035": 0.2, "036": 0.2, "038": 0.2})  # two of three side by side
    assert found.kernels == {"035": 3, "036": 3, "038": 3}
    assert (found.batch, found.context, found.device) == (64, 256, "NVIDIA H200")
    assert found.titles == {number: f"title of {number}" for number in ("035", "036", "038")}


def test_the_floor_of_a_profiled_step_is_that_of_its_own_context(results):
    record, shape = steps_of("A", folder=results), GPT2Shape(97, 1024, 8, 2, 2)
    step = record.timelines["035"]["inside"]
    assert step.context == record.ladder.context
    assert record.floor_us(step, shape) == pytest.approx(1e3 * record.ladder.floor_ms)
    fewer = step._replace(context=step.context - 10)  # of 64 sessions; K and V of 8 numbers, 2 layers, 2 bytes each
    assert record.floor_us(step, shape) - record.floor_us(fewer, shape) == pytest.approx(1e6 * 64 * 10 * 64 / 4e12)


def test_steps_are_no_recording_of_runs_and_there_may_be_none(results, tmp_path):
    assert recorded_ladder("A", folder=results) is None
    assert recorded_steps("B", folder=results) is None
    assert recorded_steps("A", "another", results) is None
    assert recorded_timelines("036", folder=tmp_path / "none") is None
    assert recorded_timelines("059", folder=results) is None  # of workload B
    for name in ("D-burst", "../A"):
        with pytest.raises(ConfigError, match="there is no record of the steps of"):
            recorded_steps(name, folder=results)


def test_neighbours_share_a_timeline(tmp_path):
    document = steps_document({"035": (48, 48), "036": (7, 48), "038": (0, 48)})
    for number, kernels in (("035", 5), ("036", 4), ("038", 2)):
        document["timelines"][number]["inside"] = timeline_document("inside", kernels)
    for rows in document["counts"].values():
        rows["inside"]["tensors built from Python lists"] = rows["inside"]["append_token calls"]
    write_recording(tmp_path / "cpu" / "A.steps.json", seal(document))
    one, other = recorded_timelines("036", folder=tmp_path), recorded_timelines("038", folder=tmp_path)
    assert list(one) == ["before", "after"]
    assert one["after"] == other["before"]
    assert [len(side.kernels) for side in (one["before"], one["after"], other["after"])] == [5, 4, 2]
    assert recorded_timelines("035", folder=tmp_path) == {"after": one["before"]}


def test_the_timeline_is_of_the_kind_of_step_that_the_lesson_is_about(tmp_path):
    document = steps_document({"038": (0, 48), "059": (0, 0), "060": (0, 0)}, "B")
    write_recording(tmp_path / "cpu" / "B.steps.json", document)
    found = recorded_timelines("059", folder=tmp_path)
    assert [side.step_kind for side in found.values()] == ["boundary", "boundary"]
    assert [side.context for side in found.values()] == [256, 256]


def test_what_runs_the_same_code_on_a_step_is_not_shown(tmp_path, results):
    document = steps_document({"038": (0, 48), "059": (0, 0), "060": (0, 0)}, "B")
    write_recording(tmp_path / "nvidia-h200" / "B.steps.json", document)
    said = "lesson 059 runs the same code before and after on a step inside a block: there is nothing to show"
    with pytest.raises(LessonError) as caught:
        recorded_timelines("059", "inside", folder=tmp_path)
    assert str(caught.value) == said
    with pytest.raises(LessonError, match=r"lesson 038 runs the same code .* on a step at a block boundary"):
        recorded_timelines("038", "boundary", folder=results)
    assert recorded_timelines("038", folder=results).keys() == {"before", "after"}
    with pytest.raises(ConfigError, match="there is no kind of step 'odd': give one of inside, boundary, fork"):
        recorded_timelines("038", "odd", folder=results)
    with pytest.raises(LessonError, match="there is no lesson '042'"):
        recorded_timelines("042", folder=results)


def test_the_steps_of_a_part_of_the_ladder_lie_beside_those_of_the_whole_and_are_never_mixed(tmp_path):
    """061 is in both files, and 062 in one: that one alone tells of lesson 062."""
    folder = tmp_path / "cpu"
    both, zero = (48, 48), (0, 0)
    document = steps_document({"061": both, "062": zero}, "A-from-061")
    document["counts"]["061"]["inside"]["bytes handed to the device"] = 5
    write_recording(folder / "A.steps.json", steps_document({"060": both, "061": both}))
    path = write_recording(folder / "A-from-061.steps.json", seal(document))
    assert list(recorded_steps("A", folder=tmp_path).titles) == ["060", "061"]
    assert list(recorded_steps("A", folder=tmp_path, first="061").titles) == ["061", "062"]
    assert recorded_steps("A", folder=tmp_path, first="060") is None
    for first in ("035", "../A", 61):
        with pytest.raises(ConfigError, match="there is no part of the ladder that begins with"):
            recorded_steps("A", folder=tmp_path, first=first)
    assert list(recorded_timelines("062", folder=tmp_path)) == ["before", "after"]
    path.unlink()
    assert recorded_timelines("062", folder=tmp_path) is None
    write_recording(path, steps_document({"061": both, "062": zero}))  # of another name
    with pytest.raises(RosecourseError, match="rosecourse record --workloads steps --from 061") as caught:
        recorded_timelines("062", folder=tmp_path)
    assert str(path) in str(caught.value)


def test_a_kind_of_step_that_was_not_recorded_has_no_timeline(tmp_path):
    """Files from before there were steps right after a fork have none of them; others have one on every rung."""
    document = steps_document({"064": (48, 48), "065": (0, 0)}, "E")
    path = write_recording(tmp_path / "cpu" / "E.steps.json", document)
    assert recorded_timelines("065", folder=tmp_path) is None
    for number, copies in (("064", 6), ("065", 0)):
        document["timelines"][number]["fork"] = timeline_document("fork")
        document["counts"][number]["fork"] = {"copy": copies}
    write_recording(path, seal(document))
    found = recorded_timelines("065", folder=tmp_path)
    assert [side.step_kind for side in found.values()] == ["fork", "fork"]
    del document["counts"]["064"]["fork"]
    write_recording(path, seal(document))
    with pytest.raises(RosecourseError, match="the counts of 064 has no 'fork'"):
        recorded_timelines("065", folder=tmp_path)


def test_rungs_may_have_other_stages(tmp_path):
    document = steps_document({"063": (48, 48), "064": (0, 0)}, "C")
    stages = {"063": ("place", "copy_blocks", "block_tables", "forward", "rest")}
    stages["064"] = ("place", "copy_blocks", "plan", "forward", "rest")
    document["parts"] = {number: {part: [10**6] * 8 for part in parts} for number, parts in stages.items()}
    write_recording(tmp_path / "cpu" / "C.steps.json", seal(document))
    found = recorded_steps("C", folder=tmp_path)
    assert {number: tuple(parts) for number, parts in found.times.seconds.items()} == stages
    told = found.between("063", "064").sentences(["step", "block_tables", "rows"])
    assert told[0].startswith("Untouched, place and copy blocks and forward: 3.00 ms before, 3.00 ms after")
    assert told[1].startswith(
        "Replaced, block tables and sample and the rest by plan rows and sample and the rest: 2.0"
    )


def test_without_rows_all_counts_tell(results):
    found = steps_of("A", folder=results)
    assert found.same_code("035", "036", (), "inside")
    assert not found.same_code("036", "038", (), "inside")
    assert found.same_code("036", "038", ("copy",), "inside")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=1), "its format is 1, not 2"),
        (lambda d: d.update(workload="B"), "it is of workload 'B'"),
        (lambda d: d.pop("batch"), "the document has no 'batch'"),
        (lambda d: d.update(context=0), "a size is not positive"),
        (lambda d: d.update(chunk=0), "a size is not positive"),
        (lambda d: d.update(titles={}), "the rungs do not fit"),
        (lambda d: d["parts"].pop("036"), "the rungs do not fit"),
        (lambda d: d["counts"].pop("036"), "the rungs do not fit"),
        (lambda d: d["timelines"].pop("036"), "the rungs do not fit"),
        (lambda d: d["parts"]["036"].pop("rest"), "parts of 036 has no 'rest'"),
        (lambda d: d["parts"].update({"035": []}), "parts is of type list"),
        (lambda d: d["parts"]["036"].update(more=[1] * 8), "other parts"),
        (lambda d: d["parts"]["036"]["rest"].append(1), "other numbers of steps"),
        (lambda d: d["parts"]["036"]["rest"].__setitem__(0, 1.5), "an item of rest is of type float"),
        (lambda d: d.update(chunk=3), "the steps make no whole turns"),
        (lambda d: d["counts"]["036"].pop("inside"), "the counts of 036 has no 'inside'"),
        (lambda d: d["counts"]["036"]["inside"].update(copy="1"), "of type str"),
        (lambda d: d["timelines"]["036"].pop("boundary"), "has no 'boundary'"),
        (lambda d: d["timelines"]["036"].update(boundary=timeline_document("inside")), "another kind of step"),
        (lambda d: d["timelines"]["036"]["inside"].update(ranges=[]), "a timeline without a step"),
    ],
)
def test_a_file_of_another_form_is_refused_though_its_checksum_fits(tmp_path, change, message):
    document = copy.deepcopy(steps_document())
    change(document)
    path = write_recording(tmp_path / "cpu" / "A.steps.json", seal(document))
    for read in (lambda: recorded_steps("A", folder=tmp_path), lambda: recorded_timelines("036", folder=tmp_path)):
        with pytest.raises(RosecourseError) as caught:
            read()
        text = str(caught.value)
        assert text.startswith(f"the steps file {path} cannot be used, ")
        assert message in text
        assert text.endswith("restore it from git, or record it anew with `rosecourse record --workloads steps`")


def test_the_steps_of_some_rungs_are_in_one_file(results):
    """Of several it is the one that begins latest, with which its logits are compared."""
    part = steps_document({"061": (48, 48), "062": (0, 0)}, "A-from-061")
    write_recording(results / "nvidia-h200" / "A-from-061.steps.json", part)
    assert list(steps_with(["035", "038"], "A", folder=results).ladder.titles) == ["035", "036", "038"]
    assert list(steps_with(["062"], "A", folder=results).ladder.titles) == ["061", "062"]
    latest = steps_document({"062": (0, 0), "063": (0, 0)}, "A-from-062")
    write_recording(results / "nvidia-h200" / "A-from-062.steps.json", latest)
    assert list(steps_with(["062"], "A", folder=results).ladder.titles) == ["062", "063"]
    assert list(steps_with(["061", "062"], "A", folder=results).ladder.titles) == ["061", "062"]
    assert steps_with(["038", "062"], "A", folder=results) is None
    assert steps_with(["035"], "B", folder=results) is None
