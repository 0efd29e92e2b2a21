"""The command `shardwise`, put together from its subcommands; errors become text and exit codes here and nowhere else.

JAX is imported by the commands that need it, after they have set its environment, so the others answer at once.
"""

import errno
import io
import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

import shardwise
from shardwise.cli import (
    check,
    data,
    evaluate,
    export,
    generate,
    import_weights,
    logs,
    page,
    plan,
    run,
    serve,
    status,
    stop,
    submit,
    tokenize,
    top,
)
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import ShardwiseError, StorageError

app = typer.Typer(
    name="shardwise",
    help="Train GPTs over many hosts and devices. The same job file trains in a cluster, with kubectl apply.",
    epilog="Example: shardwise run job.yaml --dir runs/first",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    ("check", "job.yaml --set training.mesh.tensor=4", check),
    ("plan", "job.yaml --set hardware.topology=4x4x8 --search", plan),
    ("tokenize", "data.yaml --to gs://bucket/tokens --workers 16", tokenize),
    ("run", "job.yaml --dir runs/first --set training.steps=500", run),
    ("submit", "job.yaml --namespace team --wait", submit),
    ("status", "runs/first --plot", status),
    ("top", "runs/first --every 5", top),
    ("logs", "runs/first --host 1 --follow", logs),
    ("page", "runs/first --out first.html", page),
    ("data", "runs/first --step 1208", data),
    ("stop", "runs/first", stop),
    ("generate", 'runs/first --prompt "def " --tokens 100 --top-p 0.9 --stop "class "', generate),
    ("serve", "runs/first --port 8000", serve),
    ("evaluate", "runs/first --set 'training.evaluation.sets=[{name: books, paths: [books.txt]}]'", evaluate),
    ("export", "runs/first out/model.safetensors", export),
    ("import", "gpt2/model.safetensors runs/gpt2", import_weights),
)
"""Name, an example of what follows it, and module."""
for name, example, module in _COMMANDS:
    kind = run.Command if module is run else None
    app.command(name, cls=kind, epilog=f"Example: shardwise {name} {example}")(module.command)

Version = Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)]


@app.callback(invoke_without_command=True)
def _version(*, version: Version = False) -> None:
    if version:
        typer.echo(f"shardwise {shardwise.__version__}")
        raise typer.Exit


_FULL = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Run the command line; exit codes are those of `shardwise.protocol.contract.ExitCode`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in an old terminal a text shows what it cannot print as \xe9
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="shardwise")  # typer itself ends with 2 on wrong usage, and with 130 on Ctrl-C
        finally:
            _flush()  # here, where a failure is caught below
    except ShardwiseError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        words = "that of the run directory, of the cache or of temporary files; make room there"
        _fail(f"a disk of this machine is full ({error.strerror}): {words}", ExitCode.STORAGE)


def _flush() -> None:
    """Flush standard output, if there is one: what a full disk did not take before, it does not take now either."""
    try:
        print(end="", flush=True)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at the end
        raise StorageError(f"standard output cannot be written ({error.strerror})") from error


def _fail(message: str, code: ExitCode) -> NoReturn:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
