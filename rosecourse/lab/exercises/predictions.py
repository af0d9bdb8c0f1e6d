"""What the learner predicts, and later beside it what was counted or measured.

A notebook runs in a process of its own, so that one `Predictions` for the process is one for the notebook: `predict`
and `reveal` are its methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from ...errors import ConfigError

Value = Any  # a number, a text, a list: whatever can be said of the thing that is predicted
NOTHING = 'nothing is predicted yet: predict("append_token calls in a step", 16), for instance'
LONGEST_TEXT = 60


class Revealed:
    """Predictions beside what was found: a table in a notebook, lines of text elsewhere. Rows: (name, said, found)."""

    def __init__(self, rows: list[tuple[str, Value, Value]]) -> None:
        self.rows = rows

    def __str__(self) -> str:
        return "\n".join(f"{name}: {sentence(said, found)}" for name, said, found in self.rows) or NOTHING

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{escape(NOTHING)}</p>"
        lines = [_row("th", "", "predicted", "found", "")]
        for name, said, found in self.rows:
            lines.append(_row("td", name, _shown(said) or "–", _shown(found) or "–", sentence(said, found)))
        table = "<table>\n" + "\n".join(lines) + "\n</table>"
        if all(_is_open(said) for _, said, _ in self.rows):  # the answer is not in sight before a prediction
            return f"<details><summary>Not predicted yet. Open this for the answer.</summary>{table}</details>"
        return table


class Predictions:
    """The predictions of one notebook, in the order in which they were made."""

    def __init__(self) -> None:
        self.said: dict[str, Value] = {}
        self.found: dict[str, Value] = {}

    def predict(self, name: str, value: Value = None, *more: Value) -> None:
        """Say what `name` is going to be. None and `...` are placeholders; the last word counts.

        Raises `ConfigError` for more than one value, such as 12,288.
        """
        if more:
            raise ConfigError("`predict` takes one value: write a number without a comma, and several as a list")
        self.said[name] = value

    def reveal(self, found: Mapping[str, Value] | None = None) -> Revealed:
        """Show predictions beside what was found: `reveal({"append_token calls in a step": 96})`.

        Without an argument: all that was predicted in this notebook, beside what has been found so far.
        """
        self.found |= found or {}
        names = self.said if found is None else found
        return Revealed([(name, self.said.get(name), self.found.get(name)) for name in names])


def sentence(said: Value, found: Value) -> str:
    """What may be said of a prediction, such as "you said 16, it is 96: 6 times as many"."""
    if _is_open(said):
        return "not predicted yet" + ("" if _is_open(found) else f"; it is {_shown(found)}")
    if _is_open(found):
        return f"you said {_shown(said)}; not counted yet"
    one, other = _number(said), _number(found)
    if one is not None and other is not None:
        return "exactly" if one == other else f"you said {_shown(said)}, it is {_shown(found)}: {_compared(one, other)}"
    if other is not None:
        return f"you said {_shown(said)!r}, it is {_shown(found)}: give a number, and they can be compared"
    return "right" if _plain(said) == _plain(found) else f"you said {_shown(said)}, it is {_shown(found)}"


def _compared(said: float, found: float) -> str:
    """The difference of two different numbers in words."""
    if said <= 0 or found <= 0:
        return "none at all" if found == 0 else "more than none" if said == 0 else "another sign"
    times = found / said
    if 0.9 <= times <= 1.1:
        return "close, within 10 %"
    return f"{times:.3g} times as much" if times > 1 else f"you said {1 / times:.3g} times too much"


def _is_open(value: Value) -> bool:
    return value is None or value is ...


def _number(value: Value) -> float | None:
    """The value as a finite number, from a number, a text that is one, or a tensor of one element; else None."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _plain(value: Value) -> str:
    """As it reads: `[64, 128]` and `(64, 128)` are alike, and so are "No" and "no"."""
    return " ".join(str(list(value) if isinstance(value, tuple) else value).split()).casefold()


def _shown(value: Value) -> str:
    """A value as it is read: numbers with three digits of their fraction, texts in one short line."""
    number = None if isinstance(value, str) or _is_open(value) else _number(value)
    if number is not None:
        return f"{int(number):,}" if number == int(number) else f"{number:,.4g}"
    text = "" if _is_open(value) else " ".join(str(value).split())
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."


def _row(tag: str, *cells: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"


_of_this_notebook = Predictions()
predict = _of_this_notebook.predict
reveal = _of_this_notebook.reveal
