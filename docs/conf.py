"""The documentation site: `sphinx-build -W docs FOLDER`, with the packages of the extra ``docs``.

Pages are written to be read in a repository too, so links between them are plain Markdown. What
lies outside of this folder is brought in below `about/`.
"""

import pathlib
import re
import sys

from pygments.lexers.special import TextLexer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from mds import __version__  # noqa: E402 - found by the line above

project = "mds"
author = "The mds authors"
project_copyright = author
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "pictures/*.py"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

smartquotes = False  # "--" is the beginning of an option

html_theme = "furo"
pygments_dark_style = "monokai"
html_title = f"mds {__version__}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": False, "show-inheritance": True}
autodoc_preserve_defaults = True
# The pages of the integrations are built without these packages.
autodoc_mock_imports = [
    "axolotl",
    "grain",
    "lightning",
    "olmo_core",
    "pydantic",
    "torchtitan",
    "transformers",
    "tyro",
]
maximum_signature_line_length = 80  # beyond it a line for each argument
python_use_unqualified_type_names = True

#: The page of the site that shows a file outside of this folder.
OUTSIDE = {
    "README.md": "index.md",
    "FORMAT.md": "about/format.md",
    "CHANGELOG.md": "about/changes.md",
}
#: The pages below a page in the navigation. Pages above them are listed in index.md.
CHILDREN = {
    "convert": ["writing", "guides/shard-size"],
    "storage": ["guides/credentials", "guides/own-store"],
    "parquet": ["lake", "guides/arrow"],
    "packing": ["recipes/packed", "recipes/instructions"],
    "migrating": ["door"],
}
_OUTSIDE_LINK = re.compile(r"\[((?:[^\[\]`]|`[^`]*`)*)\]\((?:\.\./)+([\w./-]+?)(#[\w-]+)?\)")


def _edit_page(_app, name, source):
    """Redirect links to files outside of this folder, and append the page's children."""

    def redirect(link):
        text, path, anchor = link.groups()
        page = OUTSIDE.get(path)
        if page is None and (HERE / path).exists():
            return link[0]  # from a folder of pages to a page above it
        return f"[{text}](/{page}{anchor or ''})" if page else text

    source[0] = _OUTSIDE_LINK.sub(redirect, source[0])
    if name in CHILDREN:
        pages = "\n".join(f"/{page}" for page in CHILDREN[name])
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def _escape_stars(_app, _context, lines):
    """Show the help of commands as plain text: its stars are patterns, not emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def _add_search(app, name, _template, _context, _doctree):
    """Rank the results of the search page with _static/search.js."""
    if name == "search":
        app.add_js_file("search.js", loading_method="defer")


def setup(app):
    """Connect the functions above; called by Sphinx."""
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", _escape_stars)
    app.connect("source-read", _edit_page)
    app.connect("html-page-context", _add_search)
    app.add_lexer("hex", TextLexer)  # bytes of a file, in FORMAT.md
