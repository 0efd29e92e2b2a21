"""The schema of Grafana's boards, as Grafana publishes it: types in Go, compiled into a program that reads a board."""

import hashlib
import subprocess
from pathlib import Path

from tests.cluster.commands import retry, run, say
from tests.cluster.places import CACHE
from tests.cluster.programs import go_compiler, locked

_SOURCE = Path(__file__).with_name("board-schema")
_BUILD = ("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")


def refused(board: Path) -> str:
    """Return what Grafana's types do not take of a board: fields that they do not know, lack, or know as another type.

    Every panel's options and every query are looked at as those of its kind. Nothing is returned of a board that is
    taken as a whole.
    """
    done = subprocess.run([_program(), board], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stderr if done.returncode else ""


def _program() -> Path:
    """Return the compiled program, kept by its sources; half a minute the first time."""
    digest = hashlib.sha256(repr(_BUILD).encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((_SOURCE / name).read_bytes())
    program = CACHE / f"board-schema-{digest.hexdigest()[:16]}"
    with locked("board-schema"):
        if not program.exists():
            say("compiling the schema of Grafana's boards: about half a minute the first time")
            retry(go_compiler(), "mod", "download", folder=_SOURCE)
            made = program.with_suffix(".part")
            run(go_compiler(), *_BUILD, "-o", made, ".", folder=_SOURCE, environment={"CGO_ENABLED": "0"})
            made.rename(program)
    return program
