"""`shardwise plan`: does a job fit its hardware, what moves, what binds, and which layout is fastest. Nothing is run.

Compiles the very step of a run for the class's topology; a machine with none of the hardware will do.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from shardwise.cli.command import JobFile, Json, Overrides, of_trainer, trainer_imports
from shardwise.cli.outputs import check_new_file, check_writable, writing
from shardwise.job.device_words import slices_words
from shardwise.job.environment import plan_environment
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import ShardwiseError, UsageError
from shardwise.protocol.files import replace_file
from shardwise.protocol.pods import Verdict

if TYPE_CHECKING:
    from shardwise.plan.result import Plan
    from shardwise.plan.search import Found

Search = Annotated[
    bool, typer.Option("--search", help="Compile up to 8 layouts that change no run, and rank them by the least time.")
]
Write = Annotated[
    bool, typer.Option("--write", help="Put the best layout of --search into the job file; its comments stay.")
]
Pictures = Annotated[
    Path | None, typer.Option("--pictures", help="A folder to draw memory, wire and mesh into, as PNG.", metavar="DIR")
]
Weights = Annotated[
    bool, typer.Option("--weights", help="List the weights: the axes of each, a device's part, and what splits it.")
]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary", help="A file for the verdict, its figures and the change that helps, as JSON.", metavar="FILE"
    ),
]


def command(
    job_file: JobFile,
    overrides: Overrides = None,
    *,
    as_json: Json = False,
    search: Search = False,
    write: Write = False,
    weights: Weights = False,
    pictures: Pictures = None,
    summary: Summary = None,
) -> None:
    """Compile a job's step for its hardware, and say what it needs.

    No hardware is needed. Ends with 0 where the job fits, and with 83 where it does not. TPUs need the compiler of
    `pip install "shardwise[plan-tpu]"`, GPUs that of `"shardwise[plan-gpu]"`; without it this machine's own stands in,
    and the memory is an estimate.
    """
    if write and not search:
        raise UsageError("plan: --write puts the best layout of a search into the file; give --search too")
    if write and overrides:
        raise UsageError("plan: --write changes the file, and --set is not in it; put the changes into the file first")
    job = of_trainer(load(job_file, overrides or []))
    _check_outputs(_replaced(job_file) if write else None, pictures, summary)
    os.environ.update(plan_environment(resolve(job)))
    with trainer_imports(), _compilers_kept_quiet() as errors, _reported(errors) as report:
        report("loading JAX and the compilers")
        from shardwise.plan.pictures import draw
        from shardwise.plan.search import changes_to_write
        from shardwise.plan.show import show
        from shardwise.plan.show_search import show_search

        made, found = _made(job, search=search, summary=summary, report=report)
        drawn = []
        if pictures:
            with writing(pictures):
                drawn = draw(made, pictures)
        changes = changes_to_write(job, found[0].choice) if write and made.fits else {}
    console = Console(highlight=False)
    if as_json:
        typer.echo(made.model_dump_json(by_alias=True, indent=2))
    else:
        if found:
            show_search(found, console)
        show(made, console, weights=weights)
        for path in drawn:
            console.print(f"drawn: {path}", markup=False)
    if write:
        said = Console(stderr=as_json, highlight=False, soft_wrap=True, markup=False)
        if made.fits:
            _write(job_file, changes, said)
        else:
            said.print(f"{job_file} stays as it is: no layout fits")
    sys.exit(ExitCode.OUT_OF_MEMORY if made.fits is False else ExitCode.OK)


def _replaced(path: Path) -> Path:
    """Return the file that --write replaces: what a link leads to, so that the link stays one."""
    return path.resolve() if path.is_file() else path


def _check_outputs(replaced: Path | None, pictures: Path | None, summary: Path | None) -> None:
    """Raise an error, before anything is compiled, if what comes of it cannot be written; make the folder."""
    if replaced:
        check_new_file(replaced)
    if pictures:
        with writing(pictures):
            pictures.mkdir(parents=True, exist_ok=True)
    if summary:
        check_writable(summary)


def _made(
    job: TrainingJob, *, search: bool, summary: Path | None, report: Callable[[str], None]
) -> "tuple[Plan, list[Found]]":
    """Return the job's plan, or the best of a search's with all that it found."""
    from shardwise.plan import build
    from shardwise.plan import search as searching

    found: list[Found] = []
    if search:
        found = searching.search(job, report)
        made = found[0].plan.model_copy(update={"layouts": [one.layout for one in found]})
    else:
        report(f"compiling the step for {slices_words(job.spec.hardware)}")
        made = build.plan(resolve(job))
    _leave(made.verdict, summary)
    if made.fits is False:  # to find a change takes longer, and may run out of memory
        made = made.model_copy(update={"change": searching.change_that_fits(job, report)})
        _leave(made.verdict, summary)
    return made, found


@contextmanager
def _reported(errors: TextIO) -> Iterator[Callable[[str], None]]:
    """Yield a report of what is being done: one line that changes, or lines if they go to no terminal."""
    console = Console(file=errors, highlight=False, soft_wrap=True)
    with console.status("") as status:

        def report(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        yield report


def _leave(verdict: Verdict, path: Path | None) -> None:
    if path:
        with writing(path):
            path.write_text(verdict.dumps(), encoding="utf-8")


def _write(path: Path, changes: dict[str, int | str], console: Console) -> None:
    """Set fields of a job file and leave all else of it as it is, comments and order too."""
    if not changes:
        console.print(f"{path} has the best layout already")
        return
    file = _replaced(path)
    text = file.read_bytes().decode("utf-8")
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines = "\r\n" if "\r\n" in text else "\n"
    new = _changed(text.removeprefix(mark).replace("\r\n", "\n"), changes)
    with writing(path):
        replace_file(file, mark + new.replace("\n", lines), durable=True, mode=S_IMODE(file.stat().st_mode))
    words = ", ".join(f"{field}={value}" for field, value in changes.items())
    console.print(f"wrote {path}: {words}")


def _changed(written: str, changes: dict[str, int | str]) -> str:
    from ruamel.yaml import YAML
    from ruamel.yaml.util import load_yaml_guess_indent

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    _, width, offset = load_yaml_guess_indent(written)  # of lists, None where the file has none
    yaml.indent(mapping=2, sequence=width or 4, offset=offset or 0)
    as_json = _json(written)
    document = yaml.load(written) if as_json is None else as_json
    for field, value in changes.items():
        *groups, name = field.split(".")
        place = document["spec"]
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    if as_json is not None:
        line = re.match(r"\s*{\n([ \t]+)", written)
        end = "\n" if written.endswith("\n") else ""
        return json.dumps(document, indent=line[1] if line else None, ensure_ascii=False) + end
    text = StringIO()
    yaml.dump(document, text)
    return text.getvalue()


def _json(written: str) -> Any:
    """Return the data of a file of JSON, which stays one; None of another."""
    try:
        return json.loads(written)
    except ValueError:
        return None


@contextmanager
def _compilers_kept_quiet() -> Iterator[TextIO]:
    """Keep what compilers write to standard error, which they do past Python, and show it if something breaks.

    Yields the standard error that a person reads.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said, os.fdopen(os.dup(2), "w") as errors:
        os.dup2(said.fileno(), 2)
        try:
            yield errors
        except ShardwiseError:  # it has words of its own
            raise
        except Exception:
            said.seek(0)
            errors.write(said.read().decode(errors="replace"))
            raise
        finally:
            errors.flush()
            os.dup2(errors.fileno(), 2)
