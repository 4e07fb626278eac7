"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import gc
import logging
import sys
from functools import cache
from pathlib import Path

from docutils.nodes import Element, TextElement, document, literal
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.search.en import SearchEnglish

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "scripts")]

from generated import filled  # noqa: E402  (its folder is on the path by now)

logging.disable(logging.DEBUG)  # nobody reads what a build says at that level, and saying it takes a twentieth of it
gc.disable()  # a build keeps nearly all it makes, and a quarter of its time went into looking through it again
project = "privfl"
copyright = "the authors of privfl, Apache-2.0"
extensions = [
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
]
exclude_patterns = ["scripts", "reference/api/*/modules.rst"]
html_theme = "furo"
html_title = "privfl"
html_extra_path = [f"../privfl/commands/shipped/{kind}.schema.json" for kind in ("experiment", "study")]
myst_heading_anchors = 3
toc_object_entries = False

# The reference: one page for each package, from the docstrings of every module; an object is described at its home.
apidoc_modules = [
    {
        "path": f"../{package}",
        "destination": f"reference/api/{package}",
        "module_first": True,
        "separate_modules": False,
    }
    for package in ("privfl", "attacks", "audits")
]
add_module_names = False
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_inherit_docstrings = False
autodoc_use_type_comments = False  # annotations say it all; looking for comments takes a sixth of a build
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

# A reference that leads nowhere is a warning, and `make docs` takes warnings as errors. Names of other projects and
# private names stay text.
nitpicky = True
ELSEWHERE = "abc|collections|enum|pathlib|dp_accounting|matplotlib|numpy|torch|_thread|types|typing"
nitpick_ignore_regex = [(r"py:.*", rf"({ELSEWHERE})\..*|(.*\.)?_\w+")]
nitpick_ignore = [("py:obj", "privfl.algorithms.personal.interpolation.Number")]  # a type variable has no entry


def whole_text(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """No type and the whole text: napoleon takes what an attribute's first line says before a colon for its type."""
    return "", docstring._dedent(docstring._consume_to_end())


GoogleDocstring._consume_inline_attribute = whole_text  # type: ignore[method-assign]
SearchEnglish.stem = cache(SearchEnglish.stem)  # type: ignore[method-assign]  # the index meets most words again


def annotations_by_full_name(app: Sphinx, page: document) -> None:
    """Types in signatures come with their full names, so the slow search through all objects is not needed."""
    for reference in page.findall(pending_xref):
        if not isinstance(reference.children[0], literal) and "refspecific" in reference:
            del reference["refspecific"]


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: TextElement) -> Element | None:
    """Find a name of another module that a docstring gives without its path, if the project has one of that name.

    Types in signatures link where they can and otherwise stay text: many are other projects' aliases.
    """
    if node.get("refdomain") != "py":
        return None
    if not isinstance(text, literal):
        return text
    if node.get("refspecific"):
        return None
    node["refspecific"] = True
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], node["reftarget"], node, text)


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the parts that are generated from the code into a page."""
    source[0] = filled(source[0])


def skip_generated(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out ``set``, which Matplotlib writes into every subclass of a figure, in markup of its own."""
    return True if name == "set" and getattr(obj, "__module__", "").startswith("matplotlib") else None


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", annotations_by_full_name)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip_generated)
