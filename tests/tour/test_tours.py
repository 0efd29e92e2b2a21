"""Every tour says what it claims, and its page is the one that is kept."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from tests.tour.breaking import TOURS

from book import __main__ as book
from book.cells import parse

PAGES = TOURS.parents[1] / "docs" / "tour"
NAMES = sorted(path.stem for path in TOURS.glob("[0-9][0-9]_*.py"))


@pytest.mark.parametrize("tour", NAMES)
def test_the_page_is_of_this_tour(tour: str) -> None:
    """The page in docs/tour has the cells as they are now (`make tour` writes it), and its pictures are there."""
    cells = parse((TOURS / f"{tour}.py").read_text(encoding="utf-8"))
    page = (PAGES / f"{tour}.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\((\w+/[\w-]+\.png)\)", page)

    assert [cell.text.strip() for cell in cells if cell.text.strip() not in page] == []
    assert pictures
    assert [picture for picture in pictures if not (PAGES / picture).is_file()] == []


@pytest.mark.parametrize("tour", NAMES)
def test_every_assertion_says_its_claim(tour: str) -> None:
    """Each `assert` of a tour has a message, by which the tests of broken tours know it."""
    tree = ast.parse((TOURS / f"{tour}.py").read_text(encoding="utf-8"))
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]

    assert asserts
    assert [node.lineno for node in asserts if node.msg is None] == []


@pytest.mark.parametrize("tour", NAMES)
def test_every_claim_is_seen_to_fall(tour: str) -> None:
    """For each `assert` of a tour, its tests know an idea without which it fails."""
    tree = ast.parse((TOURS / f"{tour}.py").read_text(encoding="utf-8"))
    claims = [_pattern(node.msg) for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    fallen = [broken.claim for broken in import_module(f"tests.tour.test_{tour}").BROKEN]

    assert [claim for claim in claims if not any(re.fullmatch(claim, one) for one in fallen)] == []


def _pattern(message: ast.expr | None) -> str:
    """What matches the message of an `assert`, whatever the values in it."""
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


def test_the_index_lists_them_in_order() -> None:
    """docs/tour/README.md has a row for each tour, in the order of their numbers."""
    rows = re.findall(r"^\| (\d\d) \|", (PAGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == [name[:2] for name in NAMES]


@pytest.mark.parametrize(("which", "folder"), [(["3"], "tried"), (["03"], "tried"), (None, "docs")])
def test_a_tour_by_itself_leaves_the_pages_alone(
    which: list[str] | None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tours that are named, with a leading zero or without, write beside docs/tour; all of them write there."""
    ran: list[tuple[str, Path]] = []

    def run(tour: Path, into: Path) -> bool:
        ran.append((tour.stem, into))
        return True

    monkeypatch.setattr(book, "_run", run)
    monkeypatch.setattr(book, "TRIED", tmp_path / "tried")
    monkeypatch.setattr(book, "DOCS", tmp_path / "docs")
    book.make(which, into=None, one=False)

    assert ran == [(name, tmp_path / folder) for name in NAMES if which is None or name == "03_moving_data"]
