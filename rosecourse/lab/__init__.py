"""The learner's lab: predict, build the part, have it checked, race it, see the change, hunt the bug, and finish."""

from ..desk.status import finish
from .checks.checking import check
from .checks.verdict import Verdict
from .exercises.cells import exercise, hints, solution
from .exercises.changing import change
from .exercises.predictions import predict, reveal
from .exercises.racing import race
from .hunts.hunting import explanation, hunt

__all__ = [
    "Verdict",
    "change",
    "check",
    "exercise",
    "explanation",
    "finish",
    "hints",
    "hunt",
    "predict",
    "race",
    "reveal",
    "solution",
]
