"""The ladder of steps as a table."""

from __future__ import annotations

from math import nan

import pandas as pd

from ..measure.anatomy import PART_NAMES, LadderSteps


def steps_table(steps: LadderSteps) -> pd.DataFrame:
    """One row for each rung: its title, the parts of a step, the whole, the device's time, and how many floors.

    NaN stands for a part that a rung's step does not have.
    """
    rows = {}
    for rung in steps.times.seconds:
        parts = steps.times.milliseconds(rung)
        whole = steps.times.step_ms(rung)
        rows[rung] = {
            "title": steps.titles[rung],
            **{f"{PART_NAMES[part]} (ms)": parts.get(part, nan) for part in steps.times.parts},
            "step (ms)": whole,
            "device busy (ms)": steps.busy_ms[rung],
            "kernels and copies": steps.kernels[rung],
            "floor (ms)": steps.floor_ms,
            "times the floor": whole / steps.floor_ms,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "rung"
    return table
