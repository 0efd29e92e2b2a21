"""Builds the images with docker, podman or buildah, whichever is there; `make images` and the tests call it.

Without targets it builds `operator` and `cpu`:

    python -m images.build
    python -m images.build tpu gpu --registry europe-docker.pkg.dev/project/repository
    python -m images.build operator --arch arm64

An image that was built from the same inputs is not built again: a label holds their fingerprint, and the engine's store
keeps it outside of this tree. An image for another architecture is built without emulation: none of its programs runs.
Nothing is pushed: that is `images/publish.py`.
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.engine import BuildError, engine_here, environment, say

ROOT = Path(__file__).resolve().parents[1]
PUBLIC_BASE = "docker.io/library/python:3.11-slim-bookworm"
INPUTS_LABEL = "dev.shardwise.inputs"
ARCHITECTURES = ("amd64", "arm64")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Target:
    """An image: its Containerfile, its lock, the folders and files it is made from, and what it can be built for."""

    image: str
    containerfile: str
    lock: str
    sources: tuple[str, ...]
    suffix: str = ""
    architectures: tuple[str, ...] = ARCHITECTURES

    def tag(self, registry: str) -> str:
        """Its name, as the chart's values put it together."""
        version = tomllib.loads((ROOT / "trainer" / "pyproject.toml").read_text())["project"]["version"]
        return f"{registry}/{self.image}:{version}{self.suffix}"

    def local(self, registry: str, architecture: str) -> str:
        """Its name in the engine's store, where images of several architectures lie beside each other."""
        return self.tag(registry) + ("" if architecture == machine() else f"-{architecture}")

    def paths(self) -> Iterator[Path]:
        """The files and folders that it is made from; asked about these, git knows what was deleted too."""
        yield from (ROOT / "images" / self.containerfile, ROOT / ".dockerignore", ROOT / "README.md", ROOT / "LICENSE")
        yield from (ROOT / "requirements" / f"{name}.txt" for name in ("image", self.lock))
        for source in self.sources:
            yield from (ROOT / source.split("/")[0] / "pyproject.toml", ROOT / source)

    def inputs(self) -> Iterator[Path]:
        """Every file that goes into it."""
        for path in self.paths():
            found = [each for each in sorted(path.rglob("*")) if each.is_file()] if path.is_dir() else [path]
            yield from (each for each in found if "__pycache__" not in each.parts)


def _trainer(lock: str, suffix: str, *architectures: str) -> Target:
    sources, every = ("trainer/shardwise",), architectures or ARCHITECTURES
    return Target("shardwise-trainer", "trainer.Containerfile", lock, sources, suffix, every)


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
    "tpu": _trainer("tpu", "-tpu", "amd64"),  # libtpu has no wheel for another one
    "gpu": _trainer("gpu", "-gpu"),
}


def build(name: str, *, architecture: str | None = None, registry: str = "localhost", base: str | None = None) -> str:
    """Build one image, unless it is there already, and return its name in the engine's store.

    Args:
        name: of the target: operator, cpu, tpu or gpu.
        architecture: amd64 or arm64; by default this machine's.
        registry: what its name begins with.
        base: the image it starts from; by default the public one, or the one made here where only buildah is.

    Raises:
        BuildError: there is no engine, a dependency has no wheel for the architecture, or the build failed.
    """
    target, engine, architecture = TARGETS[name], engine_here(), architecture or machine()
    refuse(name, architecture)
    build_base = base or default_base(engine, machine())
    base = base or default_base(engine, architecture)
    tag, inputs = target.local(registry, architecture), fingerprint(target, base, architecture)
    if _label(engine, tag) == inputs:
        say(f"{tag} is up to date")
        return tag
    say(f"building {tag} with {engine}; the first time it downloads all that requirements/{target.lock}.txt locks")
    version = target.tag(registry).rpartition(":")[2]
    arguments = {"BASE": base, "BUILD_BASE": build_base, "LOCK": target.lock}
    arguments |= {"VERSION": version, "REVISION": revision(target)}
    if engine != "docker":  # buildah 1.28 knows the target's platform, and not its own
        arguments["BUILDPLATFORM"] = f"linux/{machine()}"
    command = [engine, "build", "--file", str(ROOT / "images" / target.containerfile), "--tag", tag]
    command += ["--platform", f"linux/{architecture}"]
    command += [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    command += ["--label", f"{INPUTS_LABEL}={inputs}", *_dates(engine)]
    if _CERTIFICATES.exists():
        command += ["--secret", f"id=certificates,src={_CERTIFICATES}"]
    command.append(str(ROOT))
    done = subprocess.run(command, env=environment(), stdout=sys.stderr, check=False)  # noqa: S603  ours
    if done.returncode:
        raise BuildError(f"{engine} ended with {done.returncode} while it built {tag}; what it said is above")
    return tag


def machine() -> str:
    """The architecture of this machine, as registries call it."""
    return _MACHINES.get(platform.machine(), platform.machine())


def refuse(name: str, architecture: str) -> None:
    """Refuse an image that cannot be, before anything is done for it.

    Raises:
        BuildError: a dependency has no wheel for the architecture.
    """
    target = TARGETS[name]
    if architecture not in target.architectures:
        lacking = "libtpu has no wheel for it" if name == "tpu" else "its lock has no wheels for it"
        there = " and ".join(target.architectures)
        raise BuildError(f"{name} cannot be built for {architecture}: {lacking}; it can for {there}")


def fingerprint(target: Target, base: str, architecture: str) -> str:
    """What the image is made from, as 16 letters."""
    digest = hashlib.sha256(f"{base} {architecture}".encode())
    for path in target.inputs():
        digest.update(f"\n{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def default_base(engine: str, architecture: str) -> str:
    """The image that ours for an architecture start from unless another is asked for."""
    if engine != "buildah":
        return PUBLIC_BASE
    # Where there is buildah alone there is often no registry either: the test cluster's tool makes a base from Debian.
    from tests.cluster.base_images import ensure_base  # noqa: PLC0415  the other engines need none of it

    return ensure_base(None if architecture == machine() else architecture)


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
    """The last commit that touched or deleted an input: another commit with the same inputs makes the same image."""
    command = ["git", "log", "-1", "--format=%H", "--", *map(str, target.paths())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  ours
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Build what is asked for and print the tags, one a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*TARGETS, []], help=", ".join(TARGETS))
    parser.add_argument("--arch", choices=ARCHITECTURES, default=machine(), help="for which (default: %(default)s)")
    parser.add_argument("--registry", default="localhost", help="what the names begin with (default: %(default)s)")
    parser.add_argument("--base", help="a Python 3.11 on Debian, with venv (default: the public python image)")
    options = parser.parse_args()
    try:
        for name in options.targets or ("operator", "cpu"):
            made = build(name, architecture=options.arch, registry=options.registry, base=options.base)
            sys.stdout.write(made + "\n")
    except BuildError as failure:
        sys.exit(f"images: {failure}")


if __name__ == "__main__":
    main()
