"""Lesson 065's parts are judged: right ones pass, whoever wrote them; wrong ones are refused with their causes."""

import pytest
import torch

from rosecourse import SamplingParams
from rosecourse.kv.blocks import Copy
from rosecourse.lab import check
from rosecourse.lab.checks import end_to_end
from rosecourse.lab.hunts import hunting
from rosecourse.lab.hunts.hunting import hunt
from rosecourse.lab.world.learner import Learner
from rosecourse.lab.world.pool import Sizes
from rosecourse.lab.world.worlds import COPY_BLOCKS as WORLD
from rosecourse.lessons import BASELINE, lesson
from tests.support.cells import assert_not_own
from tests.support.right_copies import RIGHT, WITHOUT_THE_IDEA, Indexed
from tests.support.verdicts import assert_refused, assert_right_but_costly, of_the_course
from tests.support.wrong_copies import WRONG, OfEachSourceOne


@pytest.fixture(scope="module", autouse=True)
def known_of_the_course():
    """What is compared with is worked out once, before the processes that check a part fork from this one."""
    of_the_course("065")


def live_through(part):
    for scenario in WORLD.scenarios:
        scenario.story(WORLD.oracle(Learner(part, WORLD.called_with), scenario.sizes))


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", RIGHT, ids=lambda part: part.__name__)
def test_a_right_part_passes_whatever_its_style(part):
    verdict = check(part, "065")
    assert verdict.passed, verdict


def test_the_courses_own_part_is_right_and_not_the_learners():
    assert_not_own("065", "`CopyBlocks.__call__`")


@pytest.mark.grid(shows=lambda part: {WRONG[part][0]})
@pytest.mark.parametrize("part", WRONG, ids=lambda part: part.__name__)
def test_a_wrong_part_is_refused_with_its_cause(part):
    assert_refused(check(part, "065"), *WRONG[part])


@pytest.mark.grid(1)
@pytest.mark.parametrize("part", WITHOUT_THE_IDEA, ids=lambda part: part.__name__)
def test_what_grows_with_the_copies_is_told(part):
    assert_right_but_costly(check(part, "065"), WITHOUT_THE_IDEA[part])


# -- the world --------------------------------------------------------------------------------------------------------


def lists_of():
    """The lists of copies that a part is given in the scenarios, in their order."""
    given = []

    class Notes(Indexed):
        def __call__(self, copies):
            given.append(list(copies))
            super().__call__(copies)

    live_through(Notes)
    return given


def test_the_stories_bring_every_kind_of_list():
    given = lists_of()
    assert {0, 1, 2, 3, 4, 5, 15, 16} <= {len(copies) for copies in given}
    sources = [[copy.source for copy in copies] for copies in given]
    assert max(blocks.count(block) for blocks in sources for block in blocks) >= 5  # several copies of one
    assert any(0 in blocks for blocks in sources)
    destinations = [copy.destination for copies in given for copy in copies]
    assert {0, 39} <= set(destinations)
    assert all(isinstance(copy, Copy) for copies in given for copy in copies)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_number_stands_twice_in_the_pool(dtype):
    oracle = WORLD.oracle(Learner(Indexed, WORLD.called_with), Sizes(dtype=dtype, num_blocks=20))
    for length in (3, 6, 9):
        oracle.start(length)
    numbers = oracle.caches().view(torch.int32 if dtype is torch.float32 else torch.int16).flatten()
    assert len(numbers.unique()) == len(numbers)
    assert not oracle.caches().isnan().any()


def test_copies_of_a_step_begin_as_numbers_of_their_own():
    """Else a copy that is not made would be right where the block held the same before."""
    oracle = WORLD.oracle(Learner(Indexed, WORLD.called_with), Sizes(num_blocks=4))
    parent = oracle.start(2)
    for _ in range(3):
        child = oracle.fork(parent)
        oracle.make_room([child])
        oracle.accept()
        ((source, destination),) = oracle.copies
        held = oracle.caches()
        assert not (held[:, :, source, :, :2] == held[:, :, destination, :, :2]).any()
        oracle.work([child])
        oracle.free(child)


# -- whole engines ----------------------------------------------------------------------------------------------------


def test_samples_of_a_prompt_are_copied_together_in_a_whole_engine():
    (number,) = (n for n, traffic in enumerate(end_to_end.TRAFFIC) if traffic.samples > 1)
    given = []

    class Notes(Indexed):
        def __call__(self, copies):
            given.append([copy.source for copy in copies])
            super().__call__(copies)

    parts = lesson("065").after
    right = end_to_end._play(number, "cpu", BASELINE).completions
    assert end_to_end._play(number, "cpu", parts.with_(copy_blocks=Notes)).completions == right
    assert any(len(set(sources)) < len(sources) for sources in given)
    assert end_to_end._play(number, "cpu", parts.with_(copy_blocks=OfEachSourceOne)).completions != right


# -- the hunt ---------------------------------------------------------------------------------------------------------


def tokens(engine, samples, apart):
    """The tokens of samples of one prompt; apart: they make their first steps one after another."""
    session = engine.new_session([5] * 6, SamplingParams(max_new_tokens=12, stop_on_eos=False))
    engine.take_tokens([session], engine.prefill([session]))
    live = [session, *(engine.fork(session) for _ in range(samples - 1))]
    for n, sample in enumerate(live):
        sample.token_ids[-1] = 20 + n
    for group in [[sample] for sample in live] if apart else [live]:
        engine.take_tokens(group, engine.decode_step_sessions(group))
    for _ in range(6):
        engine.take_tokens(live, engine.decode_step_sessions(live))
    return [sample.completion_ids for sample in live]


@pytest.mark.parametrize(("samples", "apart", "wrong"), [(2, False, 0), (3, False, 1), (3, True, 0)])
def test_the_hunts_symptom_is_what_its_text_says(samples, apart, wrong, model, monkeypatch):
    monkeypatch.setattr(hunting, "load_model", lambda **_: model)
    right, broken = (tokens(engine, samples, apart) for engine in hunt("065").engines(model))
    assert sum(one != other for one, other in zip(right, broken, strict=True)) == wrong
