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
html_title = f"mds {__version__}"
html_copy_source = False
html_show_sourcelink = False
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": False, "show-inheritance": True}
autodoc_preserve_defaults = True
maximum_signature_line_length = 80  # beyond it a line for each argument
python_use_unqualified_type_names = True

#: Where a link out of this folder leads on the site.
OUTSIDE = {
    "README.md": "index.md",
    "FORMAT.md": "about/format.md",
    "CHANGELOG.md": "about/changes.md",
}
_OUTWARD = re.compile(r"\[((?:[^\[\]`]|`[^`]*`)*)\]\((?:\.\./)+([\w./-]+?)(#[\w-]+)?\)")
_PLACE = re.compile(r"^([\w/]+\*)\n", re.MULTILINE)


def _led_inside(_app, name, source):
    """Links to files of the repository that are pages here lead there; others are text."""

    def link(found):
        text, path, anchor = found.groups()
        page = OUTSIDE.get(path)
        if page is None and (HERE / path).exists():
            return found[0]  # from a folder of pages to a page above it
        return f"[{text}](/{page}{anchor or ''})" if page else text

    source[0] = _OUTWARD.sub(link, source[0])
    if name == "index":  # a place for pages that are not written yet
        source[0] = _PLACE.sub(
            lambda found: found[0] if any(HERE.glob(f"{found[1]}.md")) else "", source[0]
        )


def _taken_literally(_app, _context, lines):
    """The help of commands is plain text: its stars are patterns, not emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app):
    """Called by Sphinx."""
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", _taken_literally)
    app.connect("source-read", _led_inside)
    app.add_lexer("hex", TextLexer)  # bytes of a file, in FORMAT.md
