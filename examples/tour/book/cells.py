"""A tour as cells: the percent format, in which `# %%` begins a cell of code and `# %% [markdown]` one of prose."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BEGINS = re.compile(r"^# %%(?P<markdown> \[markdown\])?[^\n]*\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell of a tour."""

    is_code: bool
    line: int
    """Where its text begins in the file, from 1."""
    text: str
    """Its code, or its prose without the comment signs."""


def parse(source: str) -> list[Cell]:
    """The cells of a tour's source, in order. What stands before the first mark belongs to no cell.

    Raises:
        ValueError: A line of a prose cell is no comment.
    """
    marks = list(_BEGINS.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    cells = []
    for mark, end in zip(marks, ends, strict=True):
        text, line = source[mark.end() : end].rstrip(), source.count("\n", 0, mark.end()) + 1
        is_code = mark["markdown"] is None
        cells.append(Cell(is_code=is_code, line=line, text=text if is_code else _prose(text, line)))
    return cells


def headline(cells: Sequence[Cell]) -> tuple[str, str]:
    """The title of a tour, and the sentence under it: the first paragraph of its first cell."""
    title, _, rest = cells[0].text.partition("\n")
    return title.removeprefix("# "), rest.strip().partition("\n\n")[0].replace("\n", " ")


def lines_of_code(cells: Sequence[Cell]) -> int:
    """The lines of code of a tour: neither blank nor a comment."""
    lines = [line.strip() for cell in cells if cell.is_code for line in cell.text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _prose(text: str, first: int) -> str:
    lines = text.splitlines()
    for number, line in enumerate(lines, first):
        if line and not line.startswith("#"):
            raise ValueError(f"line {number}: {line!r}: expected a comment in a cell of prose")
    return "\n".join(line[1:].removeprefix(" ") for line in lines).strip()
