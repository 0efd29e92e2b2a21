"""The OCI runtime of a Docker of our own asks for no capability that the machine does not hold, and changes no more."""

import json
from pathlib import Path

import pytest
from tests.cluster.kind.oci_runtime import held, option, rewrite

WANTED = {"bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"], "effective": ["CAP_SYS_RESOURCE"]}
BOUND = {"bounding": ["CAP_KILL"], "effective": []}


def test_held_names_the_bits_of_a_bounding_set() -> None:
    """Bit n is the capability that the kernel numbers n: 5 is KILL, 24 is SYS_RESOURCE, 40 the last."""
    assert held(1 << 5 | 1 << 40) == {"CAP_KILL", "CAP_CHECKPOINT_RESTORE"}
    assert "CAP_SYS_RESOURCE" in held((1 << 41) - 1)
    assert "CAP_SYS_RESOURCE" not in held((1 << 41) - 1 - (1 << 24))


def test_a_new_container_asks_for_what_is_held(tmp_path: Path) -> None:
    """`create` reads the process in the bundle's config.json; all else in it stays."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": {"args": ["init"], "capabilities": WANTED}, "hostname": "node"}))

    rewrite(["--root", "/run/x", "create", f"--bundle={tmp_path}", "id"], {"CAP_KILL"})

    expected = {"process": {"args": ["init"], "capabilities": BOUND}, "hostname": "node"}
    assert json.loads(config.read_text()) == expected


def test_a_command_in_a_container_asks_for_what_is_held(tmp_path: Path) -> None:
    """`exec --process FILE` reads the process itself."""
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "capabilities": WANTED}))

    rewrite(["exec", "--process", str(process), "id"], {"CAP_KILL"})

    assert json.loads(process.read_text()) == {"args": ["sh"], "capabilities": BOUND}


def test_other_verbs_change_nothing(tmp_path: Path) -> None:
    """`start`, `kill` and `delete` start no process, and there may be no file at all."""
    rewrite(["delete", "--force", "id"], set())

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(["-b", "x"], "x"), (["--bundle", "x"], "x"), (["--bundle=x"], "x"), (["--bundle"], None), (["x"], None)],
)
def test_an_option_is_read_in_every_way_to_write_it(arguments: list[str], value: str | None) -> None:
    """Containerd's shim writes options in more than one way."""
    assert option(arguments, "--bundle", "-b") == value
