"""shardwise.train.child: what a trainer process may do before its orders, and how long that takes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SPENT = "import json; from shardwise.train.child import _SPENT; print(json.dumps(_SPENT))"

# JAX has no public name for this question.
BACKENDS = (
    "import shardwise.train.child; from jax._src.xla_bridge import backends_are_initialized;"
    "print(backends_are_initialized())"
)

THREADS = "import os, shardwise.train.child; print(*os.listdir('/proc/self/task'))"


def test_a_start_takes_no_longer_than_it_does() -> None:
    """The seconds of interpreter and imports are within those from before the process was made to after its end."""
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", SPENT], check=True, capture_output=True, text=True).stdout
    elapsed = time.monotonic() - began

    spent = json.loads(said)
    assert min(spent.values()) > 0
    assert sum(spent.values()) < elapsed


def test_nothing_runs_beside_the_imports() -> None:
    """A trainer forks when it has imported, and a fork copies one thread: OpenBLAS alone may have others."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", THREADS]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    assert len(said.split()) == 1


def test_imports_look_for_no_device() -> None:
    """What has looked for GPUs must not fork, and a TPU is one process's: devices are looked for after the orders."""
    said = subprocess.run([sys.executable, "-c", BACKENDS], check=True, capture_output=True, text=True).stdout
    assert said == "False\n"


def test_a_log_on_a_full_disk_ends_nothing() -> None:
    """What cannot be written there is lost, to either stream; the trainer goes on."""
    script = (
        "import sys, os; from shardwise.train.child import _Log; sys.stdout = _Log(sys.stdout);"
        "[print('x' * 9999, flush=True) for _ in range(9)]; os._exit(7)"
    )
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert subprocess.run([sys.executable, "-c", script], check=False, stdout=full).returncode == 7
