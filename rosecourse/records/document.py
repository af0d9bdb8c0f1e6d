"""The JSON document of a benchmark, with every raw sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..measure.metrics import DEFINITIONS
from ..measure.provenance import provenance
from ..measure.workload import Run

# -- written ------------------------------------------------------------------------------------------------------


def document(command: str, settings: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON document of a benchmark. All times are in seconds, in a run from its start."""
    return {
        "command": command,
        **provenance(),
        "settings": settings,
        "units": "seconds; submitted, admitted and tokens count from the start of their run",
        "definitions": DEFINITIONS,
        "runs": [run_record(run) for run in runs],
    }


def run_record(run: Run) -> dict[str, Any]:
    """One run with every raw sample, to the microsecond."""

    def relative(moment: float) -> float:
        return round(moment - run.start, 6)

    return {
        "total_seconds": round(run.total_seconds, 6),
        "prefill_seconds": round(run.stats.prefill_seconds, 6),
        "decode_seconds": round(run.stats.decode_seconds, 6),
        "decode_steps": run.stats.decode_steps,
        "preemptions": run.stats.preemptions,
        "requests": [
            {
                "submitted": relative(times.submitted),
                "admitted": relative(times.admitted),
                "tokens": [relative(moment) for moment in times.tokens],
            }
            for times in run.times
        ],
    }
