"""The pages of the tours as Markdown: prose, code, real output and pictures, and the index that orders them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from book.cells import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A cell that has run."""

    cell: Cell
    output: str
    pictures: tuple[tuple[Path, str], ...]
    """(file, caption) of each picture that it made."""


def page(tour: Path, done: Sequence[Done]) -> str:
    """The page of a tour."""
    source = f"../../examples/tour/{tour.name}"
    parts = []
    for one in done:
        if not one.cell.is_code:
            parts.append(one.cell.text)
            continue
        parts.append(f"```python\n{one.cell.text.strip()}\n```")
        if one.output.strip():
            parts.append(f"```text\n{_trimmed(one.output)}\n```")
        parts.extend(f"![{caption}]({tour.stem}/{path.name})\n\n*{caption}*" for path, caption in one.pictures)
    foot = f"---\n[All tours](README.md) · [this one as a script]({source})"
    return "\n\n".join([*parts, foot]) + "\n"


def index(figures: Sequence[Path], into: Path) -> None:
    """Write README.md: the tours in order, what each proves, its lines of code and its seconds."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in figures]
    lines = [
        f"| {row['tour'][:2]} | [{row['title']}]({row['tour']}.md) | {row['claim']} "
        f"| {row['lines']} | {row['seconds']:.0f} |"
        for row in rows
    ]
    intro = Path(__file__).with_name("INDEX.md").read_text(encoding="utf-8").rstrip()
    heads = "| | Tour | What it shows | lines | seconds |\n| --- | --- | --- | ---: | ---: |"
    (into / "README.md").write_text("\n".join([intro, "", heads, *lines]) + os.linesep, encoding="utf-8")


def _trimmed(output: str) -> str:
    """Output without blank ends, at its lines' right and at its top and bottom."""
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")
