"""Builds the images with docker, podman or buildah, whichever is there; `make images` and the tests call it.

Without targets it builds `operator` and `cpu`:

    python -m images.build
    python -m images.build tpu gpu --registry europe-docker.pkg.dev/project/repository

An image that was built from the same inputs is not built again: a label holds their fingerprint, and the engine's store
keeps it outside of this tree. Nothing is pushed: that is `images/publish.py`.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PUBLIC_BASE = "docker.io/library/python:3.11-slim-bookworm"
INPUTS_LABEL = "dev.shardwise.inputs"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# buildah has no daemon; layers kept, or every build would install everything again.
_BUILDAH = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "BUILDAH_LAYERS": "true"}


class BuildError(Exception):
    """An image cannot be built; shown without a traceback."""


@dataclass(frozen=True)
class Target:
    """An image: its Containerfile, its lock, and the folders and files it is made from."""

    image: str
    containerfile: str
    lock: str
    sources: tuple[str, ...]
    suffix: str = ""

    def tag(self, registry: str) -> str:
        """Its name, as the chart's values put it together."""
        version = tomllib.loads((ROOT / "trainer" / "pyproject.toml").read_text())["project"]["version"]
        return f"{registry}/{self.image}:{version}{self.suffix}"

    def inputs(self) -> Iterator[Path]:
        """Every file that goes into it."""
        yield from (ROOT / "images" / self.containerfile, ROOT / ".dockerignore", ROOT / "README.md", ROOT / "LICENSE")
        yield from (ROOT / "requirements" / f"{name}.txt" for name in ("image", self.lock))
        for source in self.sources:
            yield ROOT / source.split("/")[0] / "pyproject.toml"
            found = [ROOT / source, *sorted((ROOT / source).rglob("*"))]
            yield from (path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _trainer(lock: str, suffix: str) -> Target:
    return Target("shardwise-trainer", "trainer.Containerfile", lock, ("trainer/shardwise",), suffix)


TARGETS = {
    "operator": Target(
        "shardwise-operator",
        "operator.Containerfile",
        "operator",
        (
            "trainer/shardwise/__init__.py",
            "trainer/shardwise/job",
            "trainer/shardwise/page",
            "trainer/shardwise/protocol",
            "operator/shardwise_operator",
        ),
    ),
    "cpu": _trainer("train", "-cpu"),
    "tpu": _trainer("tpu", "-tpu"),
    "gpu": _trainer("gpu", "-gpu"),
}


def build(name: str, *, registry: str = "localhost", base: str | None = None) -> str:
    """Build one image, unless it is there already, and return its tag.

    Args:
        name: of the target: operator, cpu, tpu or gpu.
        registry: what its name begins with.
        base: the image it starts from; by default the public one, or the one made here where only buildah is.

    Raises:
        BuildError: there is no engine, or the build failed.
    """
    target, engine = TARGETS[name], engine_here()
    base = base or default_base(engine)
    tag, inputs = target.tag(registry), fingerprint(target, base)
    if _label(engine, tag) == inputs:
        say(f"{tag} is up to date")
        return tag
    say(f"building {tag} with {engine}; the first time it downloads all that requirements/{target.lock}.txt locks")
    arguments = {"BASE": base, "LOCK": target.lock, "VERSION": tag.rpartition(":")[2], "REVISION": revision(target)}
    command = [engine, "build", "--file", str(ROOT / "images" / target.containerfile), "--tag", tag]
    command += [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    command += ["--label", f"{INPUTS_LABEL}={inputs}", *_dates(engine)]
    if _CERTIFICATES.exists():
        command += ["--secret", f"id=certificates,src={_CERTIFICATES}"]
    command.append(str(ROOT))
    done = subprocess.run(command, env=environment(), stdout=sys.stderr, check=False)  # noqa: S603  ours
    if done.returncode:
        raise BuildError(f"{engine} ended with {done.returncode} while it built {tag}; what it said is above")
    return tag


def engine_here() -> str:
    """The engine of this machine.

    Raises:
        BuildError: there is none.
    """
    if _succeeds("docker", "info"):  # the client alone, without its daemon, builds nothing
        return "docker"
    for engine in ("podman", "buildah"):
        if shutil.which(engine):
            return engine
    raise BuildError("no docker with a daemon, no podman and no buildah; on Debian: apt-get install buildah")


def fingerprint(target: Target, base: str) -> str:
    """What the image is made from, as 16 letters."""
    digest = hashlib.sha256(base.encode())
    for path in target.inputs():
        digest.update(f"\n{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def default_base(engine: str) -> str:
    """The image that ours start from unless another is asked for."""
    if engine != "buildah":
        return PUBLIC_BASE
    # Where there is buildah alone there is often no registry either: the test cluster's tool makes a base from Debian.
    from tests.cluster.base_images import ensure_base  # noqa: PLC0415  the other engines need none of it
    from tests.cluster.places import BASE_IMAGE  # noqa: PLC0415  as above

    ensure_base()
    return BASE_IMAGE


def _dates(engine: str) -> list[str]:
    """Words that give all files one date: with them the same inputs make the same layers."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if engine == "docker":
        return ["--build-arg", f"SOURCE_DATE_EPOCH={seconds}"]
    return ["--timestamp", seconds]


def _label(engine: str, tag: str) -> str:
    config = ".OCIv1.Config.Labels" if engine == "buildah" else ".Config.Labels"
    words = [engine, "inspect", "--type=image", "--format", f'{{{{index {config} "{INPUTS_LABEL}"}}}}', tag]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)  # noqa: S603  ours
    return done.stdout.strip()


def revision(target: Target) -> str:
    """The last commit that touched an input: another commit with the same inputs makes the same image."""
    command = ["git", "log", "-1", "--format=%H", "--", *map(str, target.inputs())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  ours
    return done.stdout.strip() or "unknown"


def _succeeds(*command: str) -> bool:
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  ours


def environment() -> dict[str, str]:
    """The variables that an engine runs with."""
    return {**os.environ, **_BUILDAH}


def say(text: str) -> None:
    """Tell a person on standard error: standard output has the images' names alone."""
    sys.stderr.write(f"images: {text}\n")


def main() -> None:
    """Build what is asked for and print the tags, one a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*TARGETS, []], help=", ".join(TARGETS))
    parser.add_argument("--registry", default="localhost", help="what the names begin with (default: %(default)s)")
    parser.add_argument("--base", help="a Python 3.11 on Debian, with venv (default: the public python image)")
    options = parser.parse_args()
    try:
        for name in options.targets or ("operator", "cpu"):
            sys.stdout.write(build(name, registry=options.registry, base=options.base) + "\n")
    except BuildError as failure:
        sys.exit(f"images: {failure}")


if __name__ == "__main__":
    main()
