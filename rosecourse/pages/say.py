"""A computed sentence as a paragraph of the page: printed text JupyterLab breaks in the middle of a word."""

from __future__ import annotations

from textwrap import fill

from .html import paragraph
from .shell import kernels_shell

COLUMNS = 88  # of the plain text


class Markdown(str):
    """A text that a notebook shows as Markdown, and a terminal as it is."""

    __repr__ = _repr_markdown_ = str.__str__


def say(*words: object) -> None:
    """Show one paragraph: the words joined by spaces as `print` joins them; of no words, nothing.

    What stands between `backticks` is code. Outside of a notebook the plain text is printed.
    """
    text = " ".join(" ".join(map(str, words)).split())
    wrapped = fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    shell = kernels_shell()
    if text and shell is None:
        print(wrapped)
    elif text:
        shell.display_pub.publish({"text/html": paragraph(text), "text/plain": wrapped})
