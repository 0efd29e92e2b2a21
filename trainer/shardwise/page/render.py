"""The page as text: the document, as JSON, put into `page.html`.

Texts of a run, its logs above all, are not trusted. They reach the page only inside that JSON, in which no "<" is left,
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
_MARK = re.compile(r"\{\{([a-z-]+)\}\}")
_INLINE = {"script-hash": "script", "style-hash": "style"}
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(document: PageDocument) -> str:
    """Return the page of a document, as one HTML file that needs no other."""
    data = document.model_dump_json(exclude_defaults=True)
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    template, hashes = _template()
    values = {**hashes, "title": html.escape(document.name), "document": data}
    return _MARK.sub(lambda mark: values[mark[1]], template)  # in one pass: what is put in is not looked at again


@cache
def _template() -> tuple[str, dict[str, str]]:
    """Return the template, and by mark the hash of its script and of its style."""
    text = files("shardwise.page").joinpath(TEMPLATE).read_text(encoding="utf-8")
    return text, {mark: _hash(text, tag) for mark, tag in _INLINE.items()}


def _hash(text: str, tag: str) -> str:
    """Return the hash of the template's one element with this bare tag, as a content security policy names it."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
