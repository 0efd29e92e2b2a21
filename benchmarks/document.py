"""docs/performance.md, section by section: what is measured anew takes the place of what was there.

Called by each benchmark's `--write`. A section is a table under its title; the rows of the aims stand by their names.
"""

from collections.abc import Iterable, Sequence

from benchmarks import notes
from benchmarks.pages import AIMS, Table
from benchmarks.turns import ROOT

DOCUMENT = ROOT / "docs" / "performance.md"
_HEAD = "\n## "


def write(tables: Iterable[Table]) -> None:
    """Put these tables into the page; all others in it stay as they are."""
    DOCUMENT.write_text(merged(DOCUMENT.read_text(encoding="utf-8"), tables), encoding="utf-8")


def merged(page: str, tables: Iterable[Table]) -> str:
    """A page with these tables in the place of the ones with the same titles, and new ones at its end."""
    sections = {body.partition("\n")[0]: body for body in page.split(_HEAD)[1:]}
    for table in tables:
        rows = _all_aims(sections.get(AIMS, ""), table.rows) if table.title == AIMS else table.rows
        merged_table = Table(title=table.title, columns=table.columns, rows=rows, notes=table.notes)
        sections[table.title] = merged_table.markdown().removeprefix("## ")
    return _HEAD.join([notes.OPENING.rstrip() + "\n", *(f"{body.rstrip()}\n" for body in sections.values())])


def _all_aims(section: str, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The aims of a section with these rows in the place of the ones of the same names."""
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    named: dict[str, Sequence[str]] = {line[0]: line for line in lines[2:]}
    return list((named | {row[0]: row for row in rows}).values())
