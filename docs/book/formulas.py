"""Sphinx extension: formulas as MathML, which browsers draw by themselves. MathJax would be fetched from a network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

BIG = re.compile(r"\\([bB]igg?)(?=([(\[])|[)\]])")


def mathml(tex: str, block: bool) -> str:
    """docutils knows \\Bigl and \\Bigr, and no \\Big."""
    sided = BIG.sub(lambda big: big[0] + ("l" if big[2] else "r"), tex)
    return latex2mathml.tex2mathml(sided, as_block=block)


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True}
