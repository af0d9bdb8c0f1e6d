"""Settings of the book, which `make book` builds with Sphinx into build/book."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
START_PAGE = HERE.parents[1] / "notebooks" / "000_start_here.ipynb"
sys.path.insert(0, str(HERE))  # the extensions beside this file

project = "rosecourse"
author = "the authors of rosecourse"
project_copyright = "the authors, under the Apache License 2.0"
html_title = "rosecourse"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
extensions += [
    "lesson_pages",
    "alt_texts",
    "formulas",
    "docstrings",
    "signatures",
    "rooms",
]  # the files beside this one
exclude_patterns = [] if START_PAGE.exists() else ["look_up/glossary.md"]  # the glossary is a part of it
language = "en"

# The lessons, as they are committed: `lesson_pages` copies all notebooks to where Sphinx looks for them.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # what a cell shows in Markdown has tables and links
nb_ipywidgets_js = {}  # a page needs no network
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
myst_heading_anchors = 4
myst_heading_slug_func = "lesson_pages.jupyter_anchor"

# The interface, from the docstrings of the package.
add_module_names = False
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Looks. What does not work from the file system is left out: texts of hits in the search are fetched from a server.
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_show_search_summary = False
html_search_scorer = str(HERE / "_static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"navigation_with_keys": True}
