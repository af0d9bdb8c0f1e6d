"""A part that looks at the stack finds nothing of the checker there, once."""

import inspect

import pytest

from rosecourse.lab.checks.end_to_end import same_tokens
from rosecourse.lab.checks.trial import trial_of
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.fault import PartIsWrong
from rosecourse.lessons import lesson

RIGHT = lesson("038").after.kv_append


def is_checked():
    return any(frame.frame.f_globals["__name__"].startswith("rosecourse.lab") for frame in inspect.stack(0))


class RightOnlyWhenChecked(RIGHT):
    def __call__(self, sessions, key_new, value_new):
        super().__call__(sessions, key_new, value_new if is_checked() else key_new)


class RaisesUnlessChecked(RIGHT):
    def __call__(self, sessions, key_new, value_new):
        if not is_checked():
            raise ValueError("nobody looks")
        super().__call__(sessions, key_new, value_new)


@pytest.mark.grid
@pytest.mark.parametrize("part", [RightOnlyWhenChecked, RaisesUnlessChecked])
def test_a_part_that_looks_who_calls_it_is_refused(part):
    with pytest.raises(PartIsWrong) as wrong:
        same_tokens(trial_of(part, lesson("038")))
    assert wrong.value.fault.cause is Cause.TAMPERING
    assert "does otherwise where none of the checker's functions calls it" in wrong.value.fault.what


def test_a_part_that_does_not_look_has_the_tokens_of_the_baseline():
    assert "all those of the baseline" in same_tokens(trial_of(RIGHT, lesson("038")))
