"""The learner's lab: predict, build the part, have it checked, run it, see the change, hunt the bug, and finish."""

from ..desk.status import finish
from .checks.checking import check
from .checks.verdict import Verdict
from .course.scenes import prefilled as start
from .course.scenes import step
from .exercises.hunting import hunt
from .exercises.own_run import your_run
from .exercises.page import change, counts, forecast, result
from .exercises.predictions import predict, reveal

__all__ = [
    "Verdict",
    "change",
    "check",
    "counts",
    "finish",
    "forecast",
    "hunt",
    "predict",
    "result",
    "reveal",
    "start",
    "step",
    "your_run",
]
