"""The learner's lab: predict, build the part, have it checked, race it, hunt the bug."""

from .bug_hunt import explanation, hunt
from .checking import check
from .exercises import exercise, hints, solution
from .predictions import predict, reveal
from .racing import race
from .verdict import Verdict

__all__ = ["Verdict", "check", "exercise", "explanation", "hints", "hunt", "predict", "race", "reveal", "solution"]
