"""Tables in the terminal, a hundred columns wide, without colour where the output is kept."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WIDTH = 100


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="right" if index else "left")
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    Console(width=WIDTH, highlight=False).print(drawn)


def mib(num_bytes: float) -> str:
    """Bytes in MiB, as a table shows them."""
    return f"{num_bytes / 2**20:.2f}"
