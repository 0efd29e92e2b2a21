"""What is read from an image's files, without an engine."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from images.content import scan  # the folder is no package

PACKAGES = "./opt/shardwise/.venv/lib/python3.11/site-packages"


def elf(machine: int) -> bytes:
    """The beginning of a library for a processor, 64 bits, little-endian."""
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + (3).to_bytes(2, "little") + machine.to_bytes(2, "little") + b"rest"


def image(**more: bytes) -> tarfile.TarFile:
    """The files of an image, with a library for each processor, and more, by their names at the root."""
    files = {
        "./opt/shardwise/.venv/pyvenv.cfg": b"home = /usr/bin\nversion_info = 3.11.2\n",
        "./var/lib/dpkg/status": b"Package: libc6\n",
        f"{PACKAGES}/a_b-1.dist-info/METADATA": b"Metadata-Version: 2.4\nName: A.b\nVersion: 1\n\nName: text\n",
        f"{PACKAGES}/a_b/vendor/c-2.dist-info/METADATA": b"Name: c\nVersion: 2\n",
        f"{PACKAGES}/a_b/fast.so": elf(183),
        "./usr/lib/libm.so": elf(62),
        "./usr/share/short": b"\x7fELF",
        **{f"./{name}": content for name, content in more.items()},
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    packed.seek(0)
    return tarfile.open(fileobj=packed, mode="r|")


def test_the_files_say_what_is_installed() -> None:
    """Distributions of the environment alone count, by the head of their METADATA, not what one has vendored."""
    found = scan(image(), "amd64")

    assert found["python"] == "3.11.2"
    assert found["distributions"] == {"A.b": "1"}
    assert found["debian"] == "Package: libc6\n"


@pytest.mark.parametrize(
    ("architecture", "foreign"),
    [("amd64", f"{PACKAGES[2:]}/a_b/fast.so"), ("arm64", "usr/lib/libm.so")],
)
def test_a_library_for_another_processor_is_found(architecture: str, foreign: str) -> None:
    """Each architecture has one library of its own here and one that is not; a big-endian one is neither's."""
    assert scan(image(), architecture)["foreign"] == [foreign]
    big = b"\x7fELF\x02\x02\x01".ljust(16, b"\0") + (3).to_bytes(2, "big") + (183).to_bytes(2, "big")
    assert scan(image(big=big), architecture)["foreign"][-1:] == (["big"] if architecture == "amd64" else [foreign])
