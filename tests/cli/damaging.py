"""What a disk may do to a run's checkpoints while nobody looks."""

from pathlib import Path

from tests.cli.running import Run


def committed(run: Run) -> list[Path]:
    """Return the folders of the committed checkpoints, the oldest first."""
    return sorted(marker.parent for marker in run.directory.glob("checkpoints/step-*/COMMITTED"))


def damage(file: Path) -> bytes:
    """Change a byte in the middle of a file; what it holds from then on."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return bytes(content)
