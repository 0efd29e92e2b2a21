"""Runs a benchmark as a command line: an error that says what to do ends it in one line, without a traceback."""

from collections.abc import Callable

import typer


def serve(bench: Callable[..., None], *, example: str, error: type[Exception]) -> None:
    """Run `bench` with the words of the command line; `error` is what it says of the machine or of a worker."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=f"Example: {example}")(bench)
    try:
        app()
    except error as problem:
        raise SystemExit(str(problem)) from problem
