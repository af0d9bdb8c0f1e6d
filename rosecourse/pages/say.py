"""A computed sentence as a paragraph of the page.

JupyterLab breaks printed text at the pane's edge, in the middle of a word; a paragraph it breaks between words.
"""

from __future__ import annotations

from textwrap import fill

from .html import paragraph
from .shell import kernels_shell

COLUMNS = 88  # of the plain text


def say(*words: object) -> None:
    """Show one paragraph: the words, or the sentences, joined by spaces as `print` joins them; of no words, nothing.

    What stands between `backticks` is code. In a notebook the paragraph is HTML, with the plain text for those who
    cannot show it; elsewhere the plain text is printed. Its lines end between words and have at most `COLUMNS` columns,
    unless a single word is longer.
    """
    text = " ".join(" ".join(map(str, words)).split())
    if not text:
        return
    wrapped = fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
    shell = kernels_shell()
    if shell is None:
        print(wrapped)
    else:
        shell.display_pub.publish({"text/html": paragraph(text), "text/plain": wrapped})
