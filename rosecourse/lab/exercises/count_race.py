"""A race in which something is counted, because time says nothing: before, yours and the course's, side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from matplotlib.axes import Axes

from ...pages.html import paragraph
from ...pictures.drawing import new_axes
from ...pictures.tables import whole_numbers


@dataclass(frozen=True, repr=False)
class CountRace(ABC):
    """What came of it. counts: of before, yours and the course's, by their titles. untimed: why nothing is timed.

    trouble: as of a `Race`; there is none where something could be counted. what: is counted, in words. axis, title:
    of the picture; the title has a field `number`.
    """

    number: str
    part: str
    counts: Mapping[str, Any]
    untimed: str
    trouble: str = ""

    what: ClassVar[str]
    axis: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def row(self, counted: Any) -> dict[str, float]:
        """A row of the table; the names of its columns and the figures."""

    @abstractmethod
    def figure(self, counted: Any) -> float:
        """The figure of it that counts."""

    @abstractmethod
    def claim(self) -> str:
        """What the three figures say."""

    def not_timed(self) -> str:
        """Why nothing is timed, as a sentence."""
        return f"Nothing is timed on a CPU: {self.untimed}."

    @property
    def figures(self) -> list[str]:
        """The figures that count, as they are told: of before, yours and the course's."""
        return [f"{self.figure(one):g}" for one in self.counts.values()]

    def against_before(self) -> str:
        """What is counted before, and of yours."""
        before, yours, _ = self.figures
        return f"{before} to {yours} {self.axis.partition(' ')[0]}"

    def table(self) -> pd.DataFrame:
        """One row each for before, yours and the course's."""
        rows = {title: self.row(one) for title, one in self.counts.items()}
        return whole_numbers(pd.DataFrame.from_dict(rows, orient="index"))

    def draw(self, ax: Axes) -> None:
        """A bar for each of the three."""
        titles = list(self.counts)[::-1]
        lengths = [self.figure(self.counts[title]) for title in titles]
        bars = ax.barh(titles, lengths, color="tab:gray")
        ax.bar_label(bars, padding=3, fmt="{:g}")
        ax.set_xlabel(self.axis)
        ax.set_title(self.title.format(number=self.number))
        ax.set_xlim(0, 1.15 * max(1.0, *lengths))

    def show(self) -> None:
        """Show the picture in a notebook."""
        with new_axes(2.6) as ax:
            self.draw(ax)

    def sentences(self) -> list[str]:
        """What may be said, and no more."""
        return [f"What is counted: {self.what}.", self.claim(), self.not_timed()]

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table().to_html() + "".join(map(paragraph, self.sentences()))
