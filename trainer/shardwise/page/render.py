"""A page as text: its data, as JSON, put into its template, with the style and the script that all pages share.

Texts of a run, its logs above all, are not trusted. They reach a page only inside that JSON, in which no "<" is left,
and its script shows them as text. The page's policy lets no other script run than this one, known by its hash, and
lets nothing be fetched or sent.
"""

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files

from shardwise.page.document import PageDocument

TEMPLATE = "page.html"
_PACKAGE = "shardwise.page"
_COMMON = {"common-style": "common.css", "common-script": "common.js"}
_MARK = re.compile(r"\{\{([a-z-]+)\}\}")
_INLINE = {"script-hash": "script", "style-hash": "style"}
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(document: PageDocument) -> str:
    """Return the page of a run."""
    data = document.model_dump_json(exclude_defaults=True)
    return filled(_PACKAGE, TEMPLATE, title=document.name, data=data)


def filled(package: str, template: str, *, title: str, data: str) -> str:
    """Return a template of a package with a title and its data, JSON, put in: one HTML file that needs no other."""
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    text, hashes = composed(package, template)
    values = {**hashes, "title": html.escape(title), "document": data}
    return _MARK.sub(lambda mark: values[mark[1]], text)  # in one pass: what is put in is not looked at again


@cache
def composed(package: str, template: str) -> tuple[str, dict[str, str]]:
    """Return a template with what all pages share, and by mark the hash of its script and of its style."""
    text = _text(package, template)
    for mark, part in _COMMON.items():
        text = text.replace(f"{{{{{mark}}}}}", _text(_PACKAGE, part))
    return text, {mark: _hash(text, tag) for mark, tag in _INLINE.items()}


def _text(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str, tag: str) -> str:
    """Return the hash of the template's one element with this bare tag, as a content security policy names it."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
