"""Predictions: said, shown beside what was found, and never in the way of a notebook that nobody has filled in."""

import numpy as np
import pytest
import torch

from rosecourse.errors import ConfigError
from rosecourse.lab.exercises import predictions
from rosecourse.lab.exercises.predictions import Predictions, sentence


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (16, 96, "you said 16, it is 96: 6 times as much"),
        (96, 96, "exactly"),
        (96, 16, "you said 96, it is 16: you said 6 times too much"),
        (96, 60, "you said 96, it is 60: you said 1.6 times too much"),
        (0, 96, "you said 0, it is 96: more than none"),
        (5, 0, "you said 5, it is 0: none at all"),
        (-1, 2, "you said -1, it is 2: on the other side of 0"),
        (1.1, 1.113, "you said 1.1, it is 1.113: close, within 10 %"),
        (1000, 393216, "you said 1,000, it is 393,216: 393 times as much"),
        ("96", 96, "exactly"),
        ("about 5", 96, "you said 'about 5', it is 96: give a number, and they can be compared"),
        ("two\nlines", 96, "you said 'two lines', it is 96: give a number, and they can be compared"),
        (float("nan"), 96, "you said 'nan', it is 96: give a number, and they can be compared"),
        ([64, 128], (64, 128), "right"),
        ([64], [64, 128], "you said [64], it is [64, 128]"),
        ("No", "no", "right"),
        (True, False, "you said True, it is False"),
        (np.int64(16), torch.tensor(96), "you said 16, it is 96: 6 times as much"),
        (torch.zeros(2), 96, "you said 'tensor([0., 0.])', it is 96: give a number, and they can be compared"),
        (None, 96, "not predicted yet; it is 96"),
        (..., 96, "not predicted yet; it is 96"),
        (5, None, "you said 5; not counted yet"),
        (None, None, "not predicted yet"),
    ],
)
def test_a_difference_in_words(said, found, words):
    assert sentence(said, found) == words


def test_predicted_and_found_stand_side_by_side():
    notebook = Predictions()
    notebook.predict("calls", 16)
    notebook.predict("calls", 90)  # thought again: the last word counts
    notebook.predict("tensors", ...)
    shown = notebook.reveal({"calls": 96, "tensors": 18})
    assert str(shown) == "calls: you said 90, it is 96: close, within 10 %\ntensors: not predicted yet; it is 18"
    page = shown._repr_html_()
    assert page == notebook.reveal({"calls": 96, "tensors": 18})._repr_html_()
    cells = "".join(f'<td style="text-align: left">{text}</td>' for text in ("tensors", "–", "18"))
    assert cells in page


def test_all_of_a_notebook_at_once_with_what_has_been_found_so_far():
    notebook = Predictions()
    assert "nothing is predicted yet" in str(notebook.reveal())
    assert "<p>nothing is predicted yet" in notebook.reveal()._repr_html_()
    notebook.reveal({"calls": 96})
    notebook.predict("calls", 96)
    notebook.predict("spikes", 2)
    assert str(notebook.reveal()) == "calls: exactly\nspikes: you said 2; not counted yet"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((12, 288), "write 12288, without a comma"),
        ((1, 0, 125), "write 1000125, without a comma"),
        ((1, 5), "takes one value: write a number without a comma, such as 12288 or 1.5, and several as a list"),
        (("yes", 100), "takes one value"),
        ((64.0, 128), "takes one value"),
    ],
)
def test_a_number_with_a_comma_is_told_how_to_be_written(values, says):
    notebook = Predictions()
    with pytest.raises(ConfigError, match=says):
        notebook.predict("rows that are new, of 12,288", *values)
    assert str(notebook.reveal()).startswith("nothing is predicted yet")


def test_what_was_never_predicted_is_shown_as_it_is():
    assert str(Predictions().reveal({"calls": 96})) == "calls: not predicted yet; it is 96"


def test_a_text_cannot_break_the_page():
    notebook = Predictions()
    notebook.predict("<b>", "<script>" * 20)
    page = notebook.reveal({"<b>": 1})._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page


def test_the_functions_of_a_notebook_are_those_of_one_record():
    name = "tests: a name of their own"
    assert predictions.predict(name, 3) is None
    assert str(predictions.reveal({name: 6})) == f"{name}: you said 3, it is 6: 2 times as much"
