"""Tables: the ladder of steps, and whole numbers without a point."""

from __future__ import annotations

import pandas as pd

from ..measure.anatomy import PART_NAMES
from ..records.steps import RecordedSteps


def steps_table(steps: RecordedSteps) -> pd.DataFrame:
    """One row for each rung: the parts of a step, the whole, the device's time, and how many floors.

    NaN stands for a part that a rung's step does not have.
    """
    rungs = list(steps.times.turns)
    table = pd.DataFrame({rung: steps.times.milliseconds(rung) for rung in rungs}).T.reindex(columns=steps.times.parts)
    table = table.rename(columns={part: f"{PART_NAMES[part]} (ms)" for part in steps.times.parts})
    table["step (ms)"] = [steps.times.step_ms(rung) for rung in rungs]
    table["device busy (ms)"] = pd.Series(steps.busy_ms)
    table["kernels and copies"] = pd.Series(steps.kernels)
    table["floor (ms)"] = steps.floor_ms
    table["times the floor"] = table["step (ms)"] / steps.floor_ms
    return table.rename_axis(columns="rung")  # above the rungs, in the one row of heads


def whole_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with columns of floats that are all whole numbers as columns of integers; a missing one stays missing.

    Columns that also hold other numbers are left as they are, so that a column reads in one way.
    """
    floats = table.select_dtypes("float")
    whole = [name for name in floats if (floats[name].dropna() % 1 == 0).all() and floats[name].notna().any()]
    return table.astype(dict.fromkeys(whole, "Int64"))
