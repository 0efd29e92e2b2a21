"""What a test does, as words: those of its own code, and of what it uses of tests/. For `test_docs.py`."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
Definition = tuple[Path, str]


def words_of(file: Path, name: str) -> set[str]:
    """Return the words in the code of a test, all tests of the file if `name` is "", lower case, docstrings left out.

    Its fixtures, and the functions, classes and constants that it uses, are followed as far as they are in tests/.
    """
    found: set[str] = set()
    seen: set[Definition] = set()
    ahead = [(file, each) for each in _definitions(file) if each == name or (not name and each.startswith("test_"))]
    while ahead:
        if (here := ahead.pop()) in seen:
            continue
        seen.add(here)
        names, texts = _said(_definitions(here[0])[here[1]])
        found.update(part for text in (*names, *texts) for part in _parts(text))
        ahead += [place for used in names if (place := _find(here[0], used))]
    return found


def _parts(text: str) -> Iterator[str]:
    for word in re.findall(r"[\w-]+", text.lower()):
        yield word
        yield from re.split(r"[_-]", word)


def _said(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that the code uses, and its texts without docstrings."""
    docstrings = {
        id(inner.body[0].value)
        for inner in ast.walk(node)
        if isinstance(inner, ast.FunctionDef | ast.ClassDef) and isinstance(inner.body[0], ast.Expr)
    }
    names, texts = set(), set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Constant(value=str(text)) if id(inner) not in docstrings:
                texts.add(text)
    return names, texts


def _find(file: Path, name: str) -> Definition | None:
    """Return where a name that `file` uses is defined: there, in a file it imports from, or in a conftest."""
    if name in _definitions(file):
        return file, name
    if name in (imported := _imported(file)):
        other = ROOT / imported[name].replace(".", "/")
        return (other.with_suffix(".py"), name) if name in _definitions(other.with_suffix(".py")) else None
    above = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT / "tests")]
    places = [*above, ROOT / "tests" / "cluster" / "fixtures.py"]
    return next(((place, name) for place in places if name in _definitions(place)), None)


@cache
def _tree(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []


@cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Return the functions, classes and constants of a file."""
    found: dict[str, ast.stmt] = {}
    for node in _tree(file):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.Assign(targets=targets):
                found |= {part.id: node for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)}
    return found


@cache
def _imported(file: Path) -> dict[str, str]:
    """Return the names that a file imports from tests/, with their modules."""
    return {
        alias.name: node.module
        for node in _tree(file)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.") and node.module
        for alias in node.names
    }
