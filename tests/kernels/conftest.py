"""Fixtures that the tests of all kernels share."""

import dataclasses

import pytest
import triton.runtime.interpreter as triton_interpreter

from tests.kernels.harness import INTERPRETED


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    """The interpreter lets integers wrap, as a GPU does, unless it is told to look."""
    if INTERPRETED:
        strict = dataclasses.replace(triton_interpreter.interpreter_builder.options, debug=True)
        monkeypatch.setattr(triton_interpreter.interpreter_builder, "options", strict)
