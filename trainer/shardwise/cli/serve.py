"""`shardwise serve`: the model of a run's checkpoint over HTTP, in the form of OpenAI's API, until it is stopped.

What the command is doing goes to standard error. Every request has to have the server's token.
"""

import os
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.command import Average, Step, check_average, trainer_imports
from shardwise.cli.fallback_job import on_this_machine
from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import is_live, job_of, report_refused, root_of
from shardwise.job import environment
from shardwise.protocol.errors import UsageError

TOKEN_ENV = "SHARDWISE_SERVE_TOKEN"  # noqa: S105  the name of a variable
_LEAST_TOKEN = 16

Host = Annotated[
    str, typer.Option("--host", help="The address to listen at; 0.0.0.0 for all of this machine's.", metavar="IP")
]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="The port to listen at; 0 for any free one.", metavar="N")
]
RowCount = Annotated[
    int, typer.Option("--rows", min=1, help="How many texts are made at once; others wait.", metavar="N")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help=f"A file with the token that requests must have. Without it {TOKEN_ENV} has it, or a new one is printed.",
        metavar="FILE",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        help="Answer conversations in the words of this template; without it in those of the run's job.",
        metavar="chatml|llama3",
    ),
]

Logprobs = Annotated[
    bool,
    typer.Option("--logprobs", help="Answer how likely tokens are, too; as many programs more are compiled."),
]


def command(  # noqa: PLR0913  each is an option
    directory: RunDir,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    rows: RowCount = 16,
    token_file: TokenFile = None,
    chat_template: Template = None,
    logprobs: Logprobs = False,
    step: Step = None,
    average: Average = False,
) -> None:
    """Serve the model over HTTP, as OpenAI's API does.

    The model runs on the GPUs or TPU chips that the run's job names where this machine has them, or else on the
    processor. Texts of many requests are made together; each has its own temperature, top_p, top_k, seed and stop
    texts. All programs are compiled first.

    Ctrl-C or SIGTERM stops it: requests under way are finished, for up to 30 seconds.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True, style="dim")
    token, is_new = _token(token_file)
    asked_job = job_of(directory)
    check_average(asked_job, asked=average)
    job = on_this_machine(asked_job, live=is_live(directory), tell=console.print)
    environment.apply(job)
    with _listening(host, port) as listener:
        console.print("loading the model ...")
        with trainer_imports("train,serve"):
            from shardwise.cli import asked
            from shardwise.cli.saved_model import load_model
            from shardwise.cli.server.model import ServedModel
            from shardwise.cli.server.running import answer_until_stopped
            from shardwise.train.data.tokenizer import tokenizer_of
            from shardwise.train.decoder import Decoder
            from shardwise.train.origin import AVERAGES, PARAMS

        part = AVERAGES if average else PARAMS
        tokenizer = tokenizer_of(job.spec.training.data)
        has_chat = chat_template is not None or any(one.chat_template for one in job.spec.training.data.train)
        chat = asked.chat_tokenizer(job, tokenizer, chat_template) if has_chat else None
        model = load_model(job, root_of(job, directory), step=step, report=partial(report_refused, console), part=part)
        decoder = Decoder.of(model.program, model.params, rows)
        served = ServedModel(
            name=job.metadata.name, program=model.program, tokenizer=tokenizer, chat=chat, has_scores=logprobs
        )
        loaded = model.step
        del model  # the weights are laid out anew, and the parameters can go
        decoder.compile_all(lambda what: console.print(f"compiling: {what} ..."), scores=logprobs)
        if is_new:
            console.print(f"every request needs this token: {token}", style="not dim")
        address = f"http://{_shown(listener)}"
        console.print(f"serving {served.name}, checkpoint of step {loaded}, at {address}/v1", style="not dim")
        answer_until_stopped(served, decoder, token, listener)
    console.print("stopped")


def _token(path: Path | None) -> tuple[str, bool]:
    """Return the token that requests must have, and whether it was made here."""
    if path is None and TOKEN_ENV not in os.environ:
        return secrets.token_urlsafe(), True
    where = TOKEN_ENV if path is None else f"--token-file: {path}"
    try:
        token = (os.environ[TOKEN_ENV] if path is None else path.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} cannot be read ({error}); expected a file with the token") from error
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"{where}: given a token of {len(token)} characters, expected {_LEAST_TOKEN} or more, of ASCII, no spaces"
        )
    return token, False


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; it is there before the model is loaded, so that a wrong port is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); give another, or 0 for any free port"
        ) from error


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
