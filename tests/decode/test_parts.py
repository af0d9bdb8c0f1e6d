"""The parts of a decode step: a step says which one it misses."""

import pytest

from rosecourse import BEST, ConfigError, InferenceEngine, lesson


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (BEST.with_(step=lesson("063").after.step), "block_tables"),
        (BEST.with_(rows=None), "rows"),
        (lesson("063").after.with_(copy_blocks=None), "copy_blocks"),
        (lesson("061").after.with_(block_tables=None), "block_tables"),
    ],
)
def test_a_step_names_the_part_that_it_misses(small_model, parts, missing):
    with pytest.raises(ConfigError, match=f"the step needs a part `{missing}`, and there is none"):
        InferenceEngine(small_model, parts=parts)
