"""The site that `make docs` makes of docs/: the same pages, with a search, and nothing that a reader's browser fetches.

Links out of docs/, such as to an example, are shown as the paths that they are: the site has no copy of the tree.
"""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]

project = "Shardwise"
project_copyright = author = "the authors of Shardwise"
extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["decisions/0000-template.md", "site"]
html_theme = "furo"
html_title = "Shardwise"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
nitpicky = True
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _without_links_out(text: str, folder: Path) -> str:
    """Turn links from `folder` to what is there, but no page, into text; others are left for Sphinx to judge."""

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        is_page = target.suffix == ".md" and target.is_relative_to(DOCS)
        return link[0] if is_page or not target.exists() else link[1]

    return _LINK.sub(shown, text)


def _read(app: Any, docname: str, content: list[str]) -> None:
    content[0] = _without_links_out(content[0], (Path(app.srcdir) / docname).parent)


def _included(app: Any, path: Path, _docname: str, content: list[str]) -> None:
    content[0] = _without_links_out(content[0], (Path(app.srcdir) / path).resolve().parent)


def setup(app: Any) -> None:
    """Have every page, and what a page includes, read so."""
    app.connect("source-read", _read)
    app.connect("include-read", _included)
