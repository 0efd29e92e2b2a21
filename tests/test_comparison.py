"""docs/comparison.md and docs/migrate.md: figures are those of docs/performance.md, and our files are right."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwise.cli.app import app

DOCS = Path(__file__).resolve().parents[1] / "docs"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
COUNTED = ("Shardwise", "JobSets")
SECTIONS = dict(SECTION.findall((DOCS / "migrate.md").read_text(encoding="utf-8")))


def of_the_limit(who: str, *, of_llama: bool) -> list[str]:
    """Return how fast `who` was beside the limit, its fastest row of each table of a step, the least first."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    steps = [(title, text) for title, text in SECTION.findall(page) if title.startswith("Train step: ")]
    tables = [text for title, text in steps if ("Llama" in title) == of_llama]
    rows = [re.findall(rf"^\| {who}(?:, [^|]*)? \| [\d,]+ \| ([\d.]+) ", table, re.MULTILINE) for table in tables]
    return sorted((max(row, key=float) for row in rows if row), key=float)


def test_speed_is_what_was_measured() -> None:
    """The row of the comparison has the slowest and the fastest table of each kind of model."""
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| one step beside a step by hand.*$", page, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]

    for cell, who in zip(cells[1:3], ("Shardwise", "Levanter"), strict=True):
        gpt, llama = of_the_limit(who, of_llama=False), of_the_limit(who, of_llama=True)
        assert (len(gpt), len(llama)) == (4, 2)
        assert cell.startswith(f"GPT {gpt[0]} to {gpt[-1]}, Llama {llama[0]} to {llama[-1]} of it")


def test_costs_and_faults_are_what_was_measured() -> None:
    """What a thousand jobs cost beside the same pods alone, and how many rows the table of faults has."""
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    measured = (DOCS / "performance.md").read_text(encoding="utf-8")
    (table,) = [text for title, text in SECTION.findall(measured) if title.startswith("Operator: 1,000 jobs x 4 hosts")]
    ours, jobset = (re.search(rf"^\| {who}.* ([\d.]+) \(\S+ - \S+\) \|$", table, re.MULTILINE) for who in COUNTED)
    faults = (DOCS / "faults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!fault \||---)", faults, re.MULTILINE)

    assert ours
    assert jobset
    assert re.search(rf"^\| cost of 1,000 jobs .* \| {ours[1]} \|.*\| {jobset[1]} \|$", page, re.MULTILINE)
    assert f"| a table of faults, measured | [{len(rows)} rows](faults.md) |" in page


def test_each_peer_has_a_section() -> None:
    """Those whose versions the comparison names."""
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (read,) = re.findall(r"^\| \| Read at \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert [row.split("|")[1].strip() for row in read.splitlines()] == list(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_our_file_is_right(name: str, tmp_path: Path) -> None:
    """There is one of theirs and one of ours, and `shardwise check` has no word against ours."""
    blocks = re.findall(r"^```yaml\n# (Theirs|Ours).*?\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)
    assert [whose for whose, _ in blocks] == ["Theirs", "Ours"]
    path = tmp_path / "job.yaml"
    path.write_text(blocks[1][1], encoding="utf-8")

    done = CliRunner().invoke(app, ["check", str(path)])

    assert done.exit_code == 0, done.exception
    assert done.output.startswith("ok")


def test_experts_have_their_axis() -> None:
    """Experts on devices of their own are `mesh.expert`, and no section says that there is no such thing."""
    assert "| `ici_expert_parallelism` | `mesh.expert` |" in SECTIONS["MaxText"]
    for text in SECTIONS.values():
        assert "axis for experts" not in text.partition("No counterpart:")[2]
