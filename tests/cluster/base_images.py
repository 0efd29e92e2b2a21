"""The two images that everything here starts from, made here: pause, and Python on Debian. Called by the verbs.

Elsewhere the images' Containerfiles take the public python:3.11-slim-bookworm; this one stands in for it where no
registry can be reached, and has the same Debian with the Python of Debian.
"""

import shutil
import tempfile
from pathlib import Path

from tests.cluster.commands import attempt, retry, run, say
from tests.cluster.packages import IMAGES, require
from tests.cluster.places import BASE_IMAGE, BUILDAH_ENVIRONMENT, CACHE, PAUSE_IMAGE
from tests.cluster.programs import locked, programs

_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"


def ensure_pause() -> None:
    """Make the image that holds a pod's namespaces open, where buildah does not have it."""
    require(*IMAGES)
    with locked("images"):
        if not _held(PAUSE_IMAGE):
            say(f"making {PAUSE_IMAGE}")
            _image(PAUSE_IMAGE, programs() / "pause", "/pause", "--entrypoint", '["/pause"]')


def ensure_base() -> None:
    """Make the base image of the operator and the trainer, where buildah does not have it; takes a minute.

    Raises:
        ClusterError: no root, or no Debian mirror.
    """
    require(*IMAGES)
    with locked("images"):
        if _held(BASE_IMAGE):
            return
        say(f"making {BASE_IMAGE}: about a minute")
        folder = Path(tempfile.mkdtemp(dir=CACHE, prefix="rootfs-"))
        try:
            root = folder / "root"
            retry("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root)
            shutil.rmtree(root / "var/cache/apt/archives")
            shutil.rmtree(root / "var/lib/apt/lists")
            (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
            _image(BASE_IMAGE, root, "/", "--cmd", "python3")
        finally:
            shutil.rmtree(folder)


def _held(image: str) -> bool:
    return attempt("buildah", "inspect", "--type", "image", image, environment=BUILDAH_ENVIRONMENT)[0] == 0


def _image(image: str, source: Path, target: str, *config: str) -> None:
    container = run("buildah", "from", "scratch", environment=BUILDAH_ENVIRONMENT).strip()
    run("buildah", "copy", "--quiet", container, source, target, environment=BUILDAH_ENVIRONMENT)
    run("buildah", "config", *config, container, environment=BUILDAH_ENVIRONMENT)
    run("buildah", "commit", "--rm", "--quiet", container, image, environment=BUILDAH_ENVIRONMENT)
