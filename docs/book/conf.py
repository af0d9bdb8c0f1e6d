"""Settings of the book, which `make book` builds with Sphinx into build/book."""

import os
import sys
from pathlib import Path

from docutils.writers._html_base import HTMLTranslator
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))  # the file beside this one
import hooks

project = "rosecourse"
author = "the authors of rosecourse"
project_copyright = "the authors, under the Apache License 2.0"
html_title = "rosecourse"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.apidoc"]
language = "en"

# The lessons, as they are committed: `make book` copies `notebooks/` to where Sphinx looks for them.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # what a cell shows in Markdown has tables and links
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]  # a page has no kernel
nb_ipywidgets_js = {}  # a page needs no network
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 4
myst_heading_slug_func = "hooks.jupyter_anchor"

# The interface, from the docstrings of the package: a page for each of its folders.
os.environ["SPHINX_APIDOC_OPTIONS"] = "members,ignore-module-all"  # of a page; a setting of the same name is ignored
apidoc_modules = [
    {
        "path": "../../rosecourse",
        "destination": "api",
        "exclude_patterns": ["../../rosecourse/lab/*", "../../rosecourse/commands", "../../rosecourse/__main__.py"],
        "module_first": True,
    }
]
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["ray"]  # an extra that the book does not need
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Looks. What does not work from the file system is left out: texts of hits in the search are fetched from a server.
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_search_summary = False
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"navigation_with_keys": True}


def setup(app: Sphinx) -> None:
    app.connect("source-read", hooks.read_source)
    app.connect("include-read", hooks.read_included)
    app.connect("autodoc-process-docstring", hooks.plain_text)
    block = (HTMLTranslator.visit_math_block, HTMLTranslator.depart_math_block)
    app.add_html_math_renderer("mathml", (HTMLTranslator.visit_math, HTMLTranslator.depart_math), block)
