"""Interrupts and faults that the random machine does not come to: nothing is lost, all tokens afterwards are right."""

from functools import partial
from itertools import count
from signal import SIGINT, raise_signal

import pytest

from rosecourse import BEST, BlockError, EngineConfig, InferenceEngine, SchedulerClosed
from tests.support.failing import FaultAt
from tests.support.interrupt_scenes import PROMPTS, SCENES, WANTED, generated
from tests.support.interrupts import strike_lines
from tests.support.late_device import forgive
from tests.support.managers import LONG
from tests.support.pipelines import PROMPTS as REQUESTS
from tests.support.pipelines import Run, asks, assert_empty, make_engine, one_behind
from tests.support.scheduling import check
from tests.support.soak import strike_action
from tests.support.tag_model import UnsureModel

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("parts", ["061", "late"])
def test_call_is_interrupted_at_any_line(scene, parts):
    """Hazard 34: generate, stream, free, and what any thread may call of a SchedulerManager."""
    number = 20 if scene == "next(reader)" else 4
    assert strike_lines(partial(SCENES[scene], parts), number, scene) == number


def test_action_of_a_world_is_interrupted_at_any_line():
    """Hazard 34: a step, as `make soak lines` does it."""
    count = strike_action("071", 9, None)
    assert count > 200  # it prefills and decodes
    for at in (0, count // 2, count - 1):
        strike_action("071", 9, at)


def test_request_whose_stream_nobody_has_got_is_cancelled(manage, scheduler):
    """Even where the exception, and with it the stream, is kept, as a notebook keeps it."""
    manager = manage()
    notify, new_session, sessions = manager._stepper.changed.notify, scheduler.engine.new_session, []

    def interrupted():
        manager._stepper.changed.notify = notify
        raise_signal(SIGINT)
        notify()

    def remembered(*arguments):
        sessions.append(new_session(*arguments))
        return sessions[-1]

    manager._stepper.changed.notify, scheduler.engine.new_session = interrupted, remembered
    with pytest.raises(KeyboardInterrupt) as kept:
        manager.submit([1, 2, 3], LONG)
    manager.close(drain=True)
    assert [session.finish_reason for session in sessions] == ["cancelled"]
    assert kept.value.__traceback__


def test_forward_is_interrupted_at_once():
    """In the model's own code, and not at the end of the step."""
    begun = []

    class Interrupted(UnsureModel):
        def hidden(self, *arguments):
            if len(begun) == 2:  # in a decode step
                raise_signal(SIGINT)
                begun.append("and went on")
            begun.append("forward")
            return super().hidden(*arguments)

    engine = InferenceEngine(Interrupted(), EngineConfig(block_size=2, max_batch_size=4))
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, WANTED)
    assert begun == ["forward"] * 2
    begun += ["interrupted"]
    assert [g.token_ids for g in engine.generate(PROMPTS, WANTED)] == generated()


@one_behind
@pytest.mark.parametrize("k", [2, 7])
def test_device_that_fails_for_good_leaves_nothing_in_flight(parts, k):
    play, reads = Run(make_engine(parts, num_blocks=8, max_batch_size=3)), count(1)
    play.submit_all(REQUESTS[1:6], asks()[1:6])
    for slot in play.engine.pipeline.ring.empty:
        slot.read = partial(lambda read: read() if next(reads) < k else 1 / 0, slot.read)
    with pytest.raises(ZeroDivisionError):
        play.finish()
    assert play.engine.num_in_flight == 0
    assert {*play.scheduler.waiting} == {session for session in play.sessions if not session.finished}
    check(play.scheduler)
    for session in play.sessions:
        play.scheduler.cancel(session)
    play.scheduler.take_new_tokens()
    forgive(play.engine)
    assert not play.scheduler.has_work
    assert_empty(play.engine)


def test_broken_cache_breaks_the_scheduler_for_good():
    """Blocks freed behind its back: the step that notices raises, and so does each one after it, saying why."""
    play = Run(make_engine(BEST))
    session, _ = play.submit_all(REQUESTS[:2], asks([5, 5]))
    play.step()
    play.engine.kv.free(session.table)
    FaultAt(play.scheduler.runner, "launch", 1, "before")
    with pytest.raises(BlockError, match="freed twice"):
        play.scheduler.step()
    for _ in range(2):
        with pytest.raises(SchedulerClosed, match=r"could not be given back \(BlockError: .*: make a new engine") as e:
            play.scheduler.step()
        assert isinstance(e.value.__cause__, BlockError)
