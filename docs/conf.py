"""Configures the documentation site, which `make docs` builds with Sphinx.

The pages are Markdown files that are also readable in the repository. The reference of
Python comes from docstrings, and the reference of the command line from its parser.
"""

import argparse
import os
import pathlib
import re
import sys

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.util import docutils
from sphinx.util import inspect

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tf_reinforce.cli import entry  # noqa: E402
from tf_reinforce.support import version  # noqa: E402

project = "tf_reinforce"
version = release = version.VERSION
copyright = "the contributors of tf_reinforce; Apache License 2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"tf_reinforce {version}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "site" / "search_scorer.js")
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4  # the anchors of a repository page
myst_enable_extensions = ["colon_fence"]
# The tables of benchmark programs begin with headings of the third level. The glob of a
# list of pages may match no page.
suppress_warnings = ["myst.header", "toc.empty_glob"]

nitpicky = True
# The site is built without a network, and so without the indices of other projects.
nitpick_ignore_regex = [("py:.*", r"(?!tf_reinforce\.).*")]

default_role = "code"  # docstrings write code in single backticks, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstring states types and shapes
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    ("Reference", "references"),
    ("Call arguments", "params_style"),
]
autodoc_inherit_docstrings = False  # Keras documents the methods of Keras
autodoc_default_options = {"members": True}

# Pages of the site that show a file of the repository in another folder.
SHOWN = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "benchmarks": "benchmarks/README.md",
    "race": "benchmarks/RESULTS.md",
}


class Commands(docutils.SphinxDirective):
    """Shows the help of every command of `tf-reinforce`, from its parser."""

    def run(self):
        sections = []
        for command, parser in self._parsers():
            parser.formatter_class = _formatter
            section = nodes.section(ids=[nodes.make_id(command)], names=[command])
            section += nodes.title(command, command)
            text = parser.format_help()
            section += nodes.literal_block(text, text, language="text")
            sections.append(section)
        return sections

    def _parsers(self):
        parser = entry.make_parser()
        yield parser.prog, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    yield f"{parser.prog} {name}", command


def _formatter(prog):
    return argparse.HelpFormatter(prog, width=88)


def _show_file(app, docname, source):
    """Replaces a page by the file that it shows, and links to such a file by its page."""
    pages = {(ROOT / file).resolve(): f"{page}.md" for page, file in SHOWN.items()}
    folder = ROOT / "docs"
    if docname in SHOWN:
        path = ROOT / SHOWN[docname]
        source[0], folder = path.read_text(), path.parent

    def link(match):
        target, anchor = match[1], match[2] or ""
        path = (folder / target).resolve()
        if not target or not path.exists():  # an address, code, or a missing file
            return match[0]
        if path in pages:
            return f"]({pages[path]}{anchor})"
        # With `path:`, a Markdown file in another folder is a file, and no page.
        is_file = path.suffix == ".md" and path.parent != ROOT / "docs"
        target = os.path.relpath(path, ROOT / "docs")
        return f"](path:{target})" if is_file else f"]({target}{anchor})"

    source[0] = re.sub(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", link, source[0])


def _skip_keras(app, what, name, obj, skip, options):
    """Skips a member that a class inherits from Keras."""
    function = getattr(obj, "fget", obj)
    return skip or str(getattr(function, "__module__", "")).startswith("keras.")


def _show_constructor(app, what, name, obj, options, signature, annotation):
    """Returns the signature of the constructor, which Keras hides behind `__new__`."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    constructor = inspect.signature(obj.__init__, bound_method=True)
    return inspect.stringify_signature(constructor, show_annotation=False), annotation


def _convert_docstring(app, what, name, obj, options, lines):
    """Converts a docstring to reStructuredText, before Napoleon converts its sections.

    An indented block before all sections is an equation, and becomes a literal block. A
    vertical bar in a section is text, for example in π(·|s), and no substitution.
    """
    starts = (i for i, line in enumerate(lines) if re.match(r"[A-Z][\w ]*:$", line))
    first = next(starts, len(lines))
    prose, sections = lines[:first], lines[first:]
    converted, previous = [], "text"
    for line in prose:
        if line.startswith("    ") and not previous.startswith("    "):
            converted += [".. code-block:: text", ""]
        converted.append(line)
        previous = line or previous
    lines[:] = converted + [_escape(line) for line in sections]


def _escape(line):
    """Escapes vertical bars, and the stars of a second argument, outside backticks."""
    if line.startswith((">>>", "...")):
        return line
    parts = line.split("`")
    parts[::2] = [x.replace("|", "\\|").replace(", **", ", \\*\\*") for x in parts[::2]]
    return "`".join(parts)


def setup(app):
    app.add_directive("commands", Commands)
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _show_file)
    app.connect("autodoc-skip-member", _skip_keras)
    app.connect("autodoc-process-signature", _show_constructor)
    app.connect("autodoc-process-docstring", _convert_docstring, priority=400)
