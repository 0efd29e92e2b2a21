"""Whatever the launcher uses of Ray's private interface is in the installed Ray; what an upgrade removes is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.launcher.ray import private

WHERE = {"ip": "127.0.0.1", "gcs": "127.0.0.1:6379", "cluster": "00"}
# What private.py imports of Ray. Prints each part that is not there.
IMPORTED = """
import inspect, ray
from ray import _raylet
from ray._common.usage import usage_lib
from ray._private import ray_constants

used = [(_raylet, "GcsClient"), (usage_lib, "put_cluster_metadata"), (ray_constants, "KV_NAMESPACE_SESSION")]
used += [(_raylet.InnerGcsClient, name) for name in ("internal_kv_put", "cluster_id", "get_all_node_info")]
print(*(f"{owner.__name__}.{name}" for owner, name in used if not hasattr(owner, name)), sep="\\n")
print(*(f"ray.init({name})" for name in ("_node_ip_address", "_temp_dir") if name not in inspect.getsource(ray.init)))
name = _raylet.get_port_filename("ab" * 28, _raylet.GCS_SERVER_PORT_NAME)
print("" if name == "gcs_server_port_" + "ab" * 28 else f"the head's port file is now {name}")
"""


def flags(command: list[str]) -> set[str]:
    """Return the flags of a command. Ray's programs take dashes and underscores alike."""
    return {each[2:].partition("=")[0].replace("-", "_") for each in command if each.startswith("--")}


@pytest.mark.parametrize(
    ("program", "used"),
    [
        (private.GCS_SERVER, flags(private.gcs_server_command(Path("/x"), ip="127.0.0.1", node_id="00"))),
        (private.RAYLET, flags(private.raylet_command(Path("/x"), resource="r", head=True, **WHERE))),
    ],
    ids=["gcs_server", "raylet"],
)
def test_flags(program: tuple[str, ...], used: set[str]) -> None:
    """Ray's programs still have every flag that they are started with."""
    described = subprocess.run(
        [private.ray_file(program), "--help"], capture_output=True, text=True, check=False
    ).stdout
    known = {line.split()[0].lstrip("-") for line in described.splitlines() if line.startswith("    -")}

    assert used - known == set(), f"this Ray's {program[-1]} has other flags: compare private.py with its services.py"


def test_worker_arguments() -> None:
    """Ray's worker still takes every argument that it is started with, and the set-up step the ones left out."""
    worker = private.ray_file(private.WORKER)
    source = worker.read_text() + worker.with_name("setup_worker.py").read_text()
    used = flags(private.worker_command(Path("/x"), **WHERE)) | flags(list(private._SETUP_ARGUMENTS))

    missing = {name for name in used if f'"--{name.replace("_", "-")}"' not in source}
    assert missing == set(), "this Ray's default_worker.py has other arguments"


def test_variables_and_placeholders() -> None:
    """Ray still reads each environment variable that is set for it, and fills in the placeholders of its worker."""
    variables = private.variables(Path("/x"), ip="127.0.0.1", token_file=Path("/x/token")).keys() - {"HOME"}
    command = private.worker_command(Path("/x"), **WHERE)
    placeholders = {each.rpartition("=")[2] for each in command if each.endswith("PLACEHOLDER")}
    files = (("_private", "ray_constants.py"), ("_common", "usage", "usage_constants.py"), private.RAYLET)
    content = b"".join(private.ray_file(file).read_bytes() for file in files)

    assert len(placeholders) == 2
    missing = {name for name in {*variables, *placeholders, private.RAYLET_OF_WORKER} if name.encode() not in content}
    assert missing == set(), "this Ray does not know these any more, and would ignore them without an error"


def test_modules() -> None:
    """Ray's modules still have what the driver imports, and the head writes its port where the leader reads it."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.strip() == "", "this Ray no longer has what is printed"
