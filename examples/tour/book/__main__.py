"""`make tour`: run every tour, cell by cell, and write its page with its real output and pictures.

A tour is a script in the percent format (`# %%` begins a cell, `# %% [markdown]` a cell of prose), which editors
open as a notebook. Each runs in a process of its own; a failed assertion fails the run, and its page stays as it was.
All of them write docs/tour, which git keeps. Tours that are named write runs/tour, so that trying one changes no file.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from book.cells import Cell, headline, lines_of_code, parse
from book.page import Done, index, page

TOURS = Path(__file__).parents[1]
DOCS = TOURS.parents[1] / "docs" / "tour"
TRIED = TOURS.parents[1] / "runs" / "tour"
FIGURES = "FIGURES.json"
_CONSOLE = Console(highlight=False)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def make(
    which: Annotated[list[str] | None, typer.Argument(help="Numbers of tours, such as 03; all if left out.")] = None,
    into: Annotated[Path | None, typer.Option(help="Of the pages; left out, docs/tour or runs/tour.")] = None,
    one: Annotated[bool, typer.Option("--one", hidden=True)] = False,  # noqa: FBT002 # typer's way of a flag
) -> None:
    """Run the tours and write their pages. Example: make tour ARGS="03 06"."""
    which = [number.zfill(2) for number in which or ()]
    into = into or (TRIED if which else DOCS)
    tours = [tour for tour in sorted(TOURS.glob("[0-9][0-9]_*.py")) if not which or tour.name[:2] in which]
    if unknown := sorted(set(which) - {tour.name[:2] for tour in tours}):
        there = ", ".join(sorted(tour.name[:2] for tour in TOURS.glob("[0-9][0-9]_*.py")))
        raise SystemExit(f"no tour {', '.join(unknown)}; expected numbers of: {there}")
    if one:
        _run_here(tours[0], into)
        return
    into.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    failed = [tour.name for tour in tours if not _run(tour, into)]
    index(sorted(into.glob(f"*/{FIGURES}")), into)
    _CONSOLE.print(f"{len(tours) - len(failed)} of {len(tours)} tours in {time.monotonic() - began:.0f} s; {into}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _run(tour: Path, into: Path) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "book", tour.name[:2], "--into", str(into), "--one"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    seconds = time.monotonic() - began
    _CONSOLE.print(f"{tour.stem:32} {seconds:6.1f} s  {'ok' if ended.returncode == 0 else 'FAILED'}")
    if ended.returncode != 0:
        _CONSOLE.print(ended.stdout + ended.stderr, markup=False)
    return ended.returncode == 0


def environment() -> dict[str, str]:
    """The environment of a tour's process: enough threads that simulated devices can wait for each other."""
    return {**os.environ, "NPROC": "32", "PYTHONPATH": str(TOURS)}


def _run_here(tour: Path, into: Path) -> None:
    """Run one tour in this process, and write its page when all of it has held."""
    from show.figures import ALBUM  # noqa: PLC0415 # only the process of a tour needs it

    ALBUM.folder = into / tour.stem
    cells = parse(tour.read_text(encoding="utf-8"))
    module: Any = types.ModuleType("__main__")
    module.__file__ = str(tour)
    sys.modules["__main__"] = module
    sys.argv = [str(tour)]
    began = time.monotonic()
    done = [_execute(cell, tour, module) for cell in cells]
    seconds = time.monotonic() - began
    title, claim = headline(cells)
    figures = {"tour": tour.stem, "title": title, "claim": claim, "lines": lines_of_code(cells), "seconds": seconds}
    folder = into / tour.stem
    folder.mkdir(parents=True, exist_ok=True)
    (into / f"{tour.stem}.md").write_text(page(tour, done), encoding="utf-8")
    (folder / FIGURES).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _execute(cell: Cell, tour: Path, module: Any) -> Done:
    from show.figures import ALBUM  # noqa: PLC0415 # as above

    printed, pictures = io.StringIO(), len(ALBUM.made)
    if cell.is_code:
        code = compile("\n" * (cell.line - 1) + cell.text, str(tour), "exec")
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, module.__dict__)  # noqa: S102 # our own tour, cell by cell
        except Exception:  # noqa: BLE001 # whatever a tour raises is shown, with the line of the tour
            print(printed.getvalue())
            traceback.print_exc()
            raise SystemExit(1) from None
    return Done(cell=cell, output=printed.getvalue(), pictures=tuple(ALBUM.made[pictures:]))


if __name__ == "__main__":
    app()
