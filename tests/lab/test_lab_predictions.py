"""Predictions: said, shown beside what was found, and never in the way of a notebook that nobody has filled in."""

import numpy as np
import pytest
import torch

from rosecourse.errors import ConfigError
from rosecourse.lab.exercises.predictions import Predictions, sentence


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (16, 96, "6 times as much"),
        (np.int64(16), torch.tensor(96), "6 times as much"),
        ("96", 96, "exactly"),
        (96, 60, "1.6 times too much"),
        (0, 96, "more than none"),
        (5, 0, "none at all"),
        (-1, 2, "another sign"),
        (1.1, 1.113, "within 10 %"),
        (1000, 393216, "393,216"),
        ("two\nlines", 96, "'two lines', it is 96: give a number"),
        (float("nan"), 96, "give a number"),
        (torch.zeros(2), 96, "give a number"),
        ([64, 128], (64, 128), "right"),
        ([64], [64, 128], "you said [64], it is [64, 128]"),
        ("No", "no", "right"),
        (True, False, "you said True, it is False"),
        (None, 96, "not predicted yet; it is 96"),
        (..., None, "not predicted yet"),
        (5, None, "not counted yet"),
    ],
)
def test_a_difference_in_words(said, found, words):
    assert sentence(said, found).endswith(words) or words in sentence(said, found)


def test_predicted_and_found_stand_side_by_side_and_the_last_word_counts():
    notebook = Predictions()
    assert "nothing is predicted yet" in str(notebook.reveal())
    notebook.predict("calls", 16)
    notebook.predict("calls", 96)
    notebook.predict("tensors", ...)
    shown = notebook.reveal({"calls": 96, "tensors": 18})
    assert str(shown) == "calls: exactly\ntensors: not predicted yet; it is 18"
    assert ">18<" in shown._repr_html_()
    assert str(notebook.reveal()) == str(shown)
    assert "<details>" in notebook.reveal({"tensors": 18})._repr_html_()  # the answer is not in sight


def test_a_number_with_a_comma_is_refused_and_a_text_cannot_break_the_page():
    notebook = Predictions()
    with pytest.raises(ConfigError, match="without a comma"):
        notebook.predict("rows", 12, 288)
    notebook.predict("<b>", "<script>" * 20)
    page = notebook.reveal({"<b>": 1})._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page
