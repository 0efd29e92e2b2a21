"""Runs one tour in this process, and on the way each of its broken versions from the cell that is broken on.

`breaking.outcomes` starts it: `in_turn.py TOUR.py RESULTS.json`, with the broken versions on standard input as
[[idea, source], ...]. The results are {idea: [outcome, what it printed]}. Names are put back after each broken version,
so that all begin where the tour is. One that leaves something that cannot be put back (a donated array) ends the
process; the caller starts it again for the rest.
"""

import contextlib
import gc
import io
import json
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from book.cells import Cell, parse

HELD = ""
"""The outcome of a version in which no assertion failed."""


class Tour:
    """A tour as it goes, in the names of `__main__`."""

    def __init__(self, path: Path) -> None:
        """Nothing of it has run."""
        self._path, self._module = path, types.ModuleType("__main__")
        self._module.__file__ = str(path)
        sys.modules["__main__"] = self._module
        sys.argv = [str(path)]

    def run(self, cells: list[Cell]) -> tuple[str, str]:
        """Run cells; what ended them, as Python prints it, and what they printed.

        The former is HELD, "AssertionError: the claim", or another error.
        """
        printed = io.StringIO()
        for cell in cells:
            _load_in_order()
            code = compile("\n" * (cell.line - 1) + cell.text, self._module.__file__ or "", "exec")
            try:
                with contextlib.redirect_stdout(printed):
                    exec(code, self._module.__dict__)  # noqa: S102  our own tour
            except AssertionError as failed:
                return f"AssertionError: {failed}", printed.getvalue()
            except Exception:  # noqa: BLE001  whatever it is, it is the outcome
                return traceback.format_exc(), printed.getvalue()
        return HELD, printed.getvalue()

    @contextlib.contextmanager
    def aside(self, source: str) -> Iterator[None]:
        """Have another version of the file for a while, and then all names as they were."""
        names, configured = dict(self._module.__dict__), _configured()
        other = Path("broken") / self._path.name
        other.parent.mkdir(exist_ok=True)
        other.write_text(source, encoding="utf-8")
        self._module.__file__ = str(other.absolute())
        _forget_peak()
        yield
        self._module.__dict__.clear()
        self._module.__dict__.update(names)
        _configure(configured)
        gc.collect()  # what only the broken version held

    def is_whole(self) -> bool:
        """Whether every array that has a name still has its data."""
        jax = sys.modules.get("jax")
        if jax is None:
            return True
        leaves = jax.tree.leaves([value for name, value in self._module.__dict__.items() if name != "__builtins__"])
        return not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)


def _load_in_order() -> None:
    """Once the tour has imported JAX: what other tests have compiled comes from JAX's own cache."""
    if "jax" in sys.modules:
        from shardwise.train.jax_private import load_in_order  # noqa: PLC0415  it would import JAX before the tour does

        load_in_order()


def _forget_peak() -> None:
    """Begin the peak of the resident set anew, which would be that of the versions before (Linux alone can)."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _configured() -> dict[str, Any]:
    jax = sys.modules.get("jax")
    return {} if jax is None else dict(jax.config.values)


def _configure(before: dict[str, Any]) -> None:
    jax = sys.modules.get("jax")
    for name, value in before.items():
        if jax is not None and jax.config.values[name] != value:
            jax.config.update(name, value)


def main(path: Path, results: Path, versions: list[tuple[str, str]]) -> None:
    """Run the tour and its broken versions; each outcome is written as soon as it is known."""
    cells = parse(path.read_text(encoding="utf-8"))
    outcomes: dict[str, tuple[str, str]] = {}
    waiting = [(idea, source, parse(source)) for idea, source in versions]
    tour = Tour(path)

    def tell(idea: str, outcome: str, printed: str) -> None:
        outcomes[idea] = outcome, printed
        results.write_text(json.dumps(outcomes), encoding="utf-8")

    for number, cell in enumerate(cells):
        if not cell.is_code:
            continue
        for idea, source, broken in waiting:
            if idea in outcomes or broken[number].text == cell.text:
                continue
            whole = tour.is_whole()
            with tour.aside(source):
                outcome, printed = tour.run([other for other in broken[number:] if other.is_code])
            tell(idea, outcome, printed)
            if whole and not tour.is_whole():
                return
        outcome, printed = tour.run([cell])
        if outcome != HELD:
            tell("", outcome, printed)
            return
    tell("", HELD, "")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.load(sys.stdin))
