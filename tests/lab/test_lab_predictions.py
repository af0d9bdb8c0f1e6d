"""Predictions: said, shown beside what was found, and never in the way of a notebook that nobody has filled in."""

import numpy as np
import pytest
import torch

from rosecourse.errors import ConfigError
from rosecourse.lab import predict, reveal
from rosecourse.lab.exercises import predictions


@pytest.fixture(autouse=True)
def _a_notebook(monkeypatch):
    monkeypatch.setattr(predictions, "SAID", {})


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (np.int64(16), torch.tensor(96), "you said 16, it is 96"),
        ("96", 96, "exactly"),
        (1.1, 1.2111, "it is 1.211"),
        (1000, 393216, "393,216"),
        (None, 96, "not predicted yet; it is 96"),
    ],
)
def test_a_difference_in_words(said, found, words):
    predict("it", said)
    assert words in str(reveal({"it": found}))


def test_prediction_stands_beside_what_was_found():
    predict("calls", 16)
    predict("calls", 96)
    predict("<b>", ...)
    shown = reveal({"calls": 96, "<b>": 18})
    assert str(shown) == "calls: exactly\n<b>: not predicted yet; it is 18"
    assert ">&lt;b&gt;<" in shown._repr_html_()
    assert ">18<" in shown._repr_html_()
    assert "<details>" not in shown._repr_html_()
    assert "<details>" in reveal({"<b>": 18})._repr_html_()  # the answer is not in sight


@pytest.mark.parametrize("said", [(12, 288), ("many",), (float("inf"),), (torch.zeros(2),), ([64],)])
def test_one_number_is_wanted(said):
    with pytest.raises(ConfigError, match="without a comma"):
        predict("rows", *said)
