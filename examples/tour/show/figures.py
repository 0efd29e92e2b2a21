"""Where the pictures of a tour go: a folder of the run, or the folder of the page that is being built."""

import sys
from pathlib import Path

from matplotlib.figure import Figure

DOTS_PER_INCH = 110


class Album:
    """The pictures of one tour, in the order in which they were made."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Where they go; None: runs/tour/NAME under the present folder, NAME as of the script that runs."""
        self.made: list[tuple[Path, str]] = []
        """(file, caption) of each."""

    def add(self, figure: Figure, name: str, caption: str) -> Path:
        """Save a figure as NAME.png; returns the file."""
        folder = self.folder or Path("runs/tour") / Path(sys.argv[0]).stem
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
        self.made.append((path, caption))
        return path


ALBUM = Album()


def picture(figure: Figure, name: str, caption: str) -> None:
    """Save a tour's picture, and say where it is unless it goes into a page."""
    path = ALBUM.add(figure, name, caption)
    if ALBUM.folder is None:
        print(f"picture: {path} ({caption})")
