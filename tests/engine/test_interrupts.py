"""An interrupt at any line: nothing is lost, and every token afterwards is right. `make soak` takes all lines."""

from functools import partial
from signal import SIGINT, raise_signal

import pytest

from rosecourse import InferenceEngine
from rosecourse.kv import guards
from tests.support.interrupt_scenes import PROMPTS, SCENES, WANTED, check_empty, generated, step_scene
from tests.support.interrupt_story import MODEL, STEPS, make_engine, told_alone
from tests.support.interrupts import strike_lines
from tests.support.managers import LONG
from tests.support.soak import ENGINES

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("parts", ENGINES)
def test_steps_are_interrupted_at_any_line(parts):
    """Hazard 34: prefills, decode steps over block boundaries, copies, preemptions, prefix hits and evictions, ends."""
    expected = told_alone(parts)
    for step in range(STEPS):
        assert strike_lines(partial(step_scene, parts, step, expected), 1, f"{parts} {step}") == 1


@pytest.mark.parametrize("scene", SCENES)
def test_a_call_is_interrupted_at_any_line(scene):
    """Hazard 34: generate, stream, fork, free, submit, cancel, and what any thread may call of a SchedulerManager."""
    assert strike_lines(partial(SCENES[scene], "061"), 8, scene) == 8


def test_a_request_whose_stream_nobody_has_got_is_cancelled(manage, scheduler):
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


def test_a_part_that_hangs_can_be_interrupted(monkeypatch):
    """An append that loops for ever, in the middle of a step: the second Ctrl-C ends it, and the engine goes on."""
    monkeypatch.setattr(guards, "PATIENCE", 0.01)
    engine = make_engine("061")
    real = engine.decode_step.kv_append

    def hangs(*arguments):
        real(*arguments)
        while True:
            raise_signal(SIGINT)

    engine.decode_step.kv_append = hangs
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, WANTED)
    engine.decode_step.kv_append = real
    check_empty(engine)


def test_a_forward_is_interrupted_at_once():
    """In the model's own code, and not at the end of the step."""
    begun = []

    class Interrupted(type(MODEL)):
        def hidden(self, *arguments):
            if len(begun) == 2:  # in a decode step
                raise_signal(SIGINT)
                begun.append("and went on")
            begun.append("forward")
            return super().hidden(*arguments)

    engine = InferenceEngine(Interrupted(), make_engine("061").config)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, WANTED)
    assert begun == ["forward"] * 2
    begun += ["interrupted"]
    assert [g.token_ids for g in engine.generate(PROMPTS, WANTED)] == generated()
