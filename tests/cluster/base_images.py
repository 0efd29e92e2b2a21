"""The two images that everything here starts from, made here: pause, and Python on Debian. Called by the verbs.

Elsewhere the images' Containerfiles take the public python:3.11-slim-bookworm; this one stands in for it where no
registry can be reached, and has the same Debian with the Python of Debian. For another architecture it is unpacked, not
installed: not one program of that architecture runs here.
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


def ensure_base(foreign: str | None = None) -> str:
    """Make the base image of the operator and the trainer, where buildah does not have it, and return its name.

    Takes a minute or two.

    Args:
        foreign: the architecture, as Debian calls it, such as arm64; by default this machine's own.

    Raises:
        ClusterError: no root, or no Debian mirror.
    """
    require(*IMAGES)
    name = f"{BASE_IMAGE}-{foreign}" if foreign else BASE_IMAGE
    with locked("images"):
        if _held(name):
            return name
        say(f"making {name}: about a minute")
        folder = Path(tempfile.mkdtemp(dir=CACHE, prefix="rootfs-"))
        try:
            root = folder / "root"
            if foreign:
                _unpack(root, foreign)
            else:
                retry("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root)
            shutil.rmtree(root / "var/cache/apt/archives")
            shutil.rmtree(root / "var/lib/apt/lists")
            (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
            _image(name, root, "/", "--cmd", "python3", *(("--arch", foreign) if foreign else ()))
        finally:
            shutil.rmtree(folder)
    return name


def _unpack(root: Path, architecture: str) -> None:
    """Unpack the same packages for another architecture, and do what of their scripts our images need."""
    words = ("--download-only", "--variant=minbase", f"--arch={architecture}", f"--include={_PACKAGES}")
    retry("debootstrap", *words, "bookworm", root)
    shutil.rmtree(root / "debootstrap")
    for name in ("bin", "sbin", "lib"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")  # packages have their files below either name
    unpack = (
        'dpkg-deb --fsys-tarfile "$0" | tar --extract --preserve-permissions --keep-directory-symlink --directory "$1"'
    )
    installed = []
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        run("bash", "-o", "pipefail", "-c", unpack, package, root)
        head, _, fields = run("dpkg-deb", "--field", package).partition("\n")
        installed.append(f"{head}\nStatus: install ok installed\n{fields}\n")
    (root / "var/lib/dpkg/status").write_text("".join(installed))
    (root / "usr/local/bin").mkdir(parents=True)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    shutil.copy(root / "usr/share/libc-bin/nsswitch.conf", root / "etc")
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    (root / "etc/ssl/certs/ca-certificates.crt").write_text("".join(path.read_text() for path in authorities))


def _held(image: str) -> bool:
    return attempt("buildah", "inspect", "--type", "image", image, environment=BUILDAH_ENVIRONMENT)[0] == 0


def _image(image: str, source: Path, target: str, *config: str) -> None:
    container = run("buildah", "from", "scratch", environment=BUILDAH_ENVIRONMENT).strip()
    run("buildah", "copy", "--quiet", container, source, target, environment=BUILDAH_ENVIRONMENT)
    run("buildah", "config", *config, container, environment=BUILDAH_ENVIRONMENT)
    run("buildah", "commit", "--rm", "--quiet", container, image, environment=BUILDAH_ENVIRONMENT)
