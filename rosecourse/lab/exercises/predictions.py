"""What the learner predicts, and beside it what was counted or measured: numbers.

A notebook runs in a process of its own, so what is said in one process was said in one notebook.
"""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from ...errors import ConfigError

SAID: dict[str, float] = {}  # by what it is about


def predict(name: str, value: Any = ..., *more: Any) -> None:
    """Say what number `name` is going to be. None and `...` are placeholders; the last word counts.

    Raises `ConfigError` for what is no number, and for more than one value, such as 12,288.
    """
    SAID.pop(name, None)
    if value is None or value is ...:
        return
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if more or not math.isfinite(number):
        raise ConfigError("`predict` takes one number: write it without a comma")
    SAID[name] = number


class Revealed:
    """Predictions beside what was found: a table in a notebook, lines of text elsewhere. Rows: (name, said, found)."""

    def __init__(self, rows: list[tuple[str, float | None, float]]) -> None:
        self.rows = rows

    def __str__(self) -> str:
        return "\n".join(f"{name}: {sentence(said, found)}" for name, said, found in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = [_row("th", "", "predicted", "found", "")]
        for name, said, found in self.rows:
            lines.append(_row("td", name, "–" if said is None else _shown(said), _shown(found), sentence(said, found)))
        table = "<table>\n" + "\n".join(lines) + "\n</table>"
        if all(said is None for _, said, _ in self.rows):  # the answer is not in sight before a prediction
            return f"<details><summary>Not predicted yet. Open this for the answer.</summary>{table}</details>"
        return table


def reveal(found: Mapping[str, Any]) -> Revealed:
    """Show predictions beside the numbers that were found: `reveal({"append_token calls in a step": 96})`."""
    return Revealed([(name, SAID.get(name), float(number)) for name, number in found.items()])


def sentence(said: float | None, found: float) -> str:
    """What may be said of a prediction, such as "you said 16, it is 96"."""
    if said is None:
        return f"not predicted yet; it is {_shown(found)}"
    if said == found:
        return "exactly"
    return f"you said {_shown(said)}, it is {_shown(found)}"


def _shown(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:,.4g}"


def _row(tag: str, *cells: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"
