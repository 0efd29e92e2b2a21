"""Builds images, pushes them to a registry, and writes by which digest they lie there and what is in them.

    python -m images.publish operator cpu tpu --registry europe-docker.pkg.dev/project/repository

Below build/publish it leaves `images.yaml`, values with which the chart takes these very images, and for each image its
bill of materials and its provenance (`images/bill.py`). An image that holds anything but its lock is not pushed.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from images.bill import LOOK, Built, bill, content, differences, locked, normalised, provenance
from images.build import ROOT, TARGETS, BuildError, build, default_base, engine_here, environment, revision, say

FOLDER = ROOT / "build" / "publish"
_OURS = {"operator": ("shardwise", "shardwise-operator")}


def publish(name: str, *, registry: str, base: str | None = None, folder: Path = FOLDER) -> str:
    """Build one image, push it, describe it below `folder`, and return its name with its digest.

    Args:
        name: of the target: operator, cpu, tpu or gpu.
        registry: what its name begins with; whoever calls has logged in there.
        base: the image it starts from; by default that of `build`.
        folder: where the bill of materials and the provenance are written.

    Raises:
        BuildError: there is no engine, the build or the push failed, or the image holds anything but its lock.
    """
    engine, target = engine_here(), TARGETS[name]
    base = base or default_base(engine)
    pinned = _pinned(engine, base)
    # buildah's base may be of this machine alone, where no registry knows its digest.
    tag = build(name, registry=registry, base=base if engine == "buildah" else pinned)
    image, _, tagged = tag.rpartition(":")
    version = tagged.removesuffix(target.suffix)
    found = content(_look(engine, tag))
    lock = ROOT / "requirements" / f"{target.lock}.txt"
    expected = locked(lock.read_text()) | dict.fromkeys(map(normalised, _OURS.get(name, ("shardwise",))), version)
    if wrong := differences(found.distributions, expected):
        raise BuildError(f"{tag} does not hold what {lock.name} locks: {'; '.join(wrong)}")
    digest = _push(engine, tag)
    decisive = (lock, ROOT / "requirements" / "image.txt", ROOT / "images" / target.containerfile)
    files = {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in decisive}
    built = Built(image, digest, version, revision(target), _is_modified(name), engine, pinned, files)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.cdx.json").write_text(bill(built, found) + "\n")
    statement = provenance(built, datetime.now(UTC))
    (folder / f"{name}.provenance.json").write_text(json.dumps(statement, indent=1) + "\n")
    return f"{image}@{digest}"


def values(names: Mapping[str, str]) -> str:
    """Return values of the chart for images by their targets, as YAML."""
    return "images:\n" + "".join(f"  {target}: {name}\n" for target, name in names.items())


def _pinned(engine: str, base: str) -> str:
    """Return an image's name with its digest; it is fetched first, if need be."""
    if engine == "buildah":
        _run(engine, "pull", "--quiet", "--policy", "missing", base)
        digest = _run(engine, "inspect", "--type=image", "--format", "{{.FromImageDigest}}", base).strip()
        return f"{base.partition('@')[0]}@{digest}"
    _run(engine, "pull", "--quiet", base)
    return _run(engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", base).strip()


def _look(engine: str, tag: str) -> dict[str, Any]:
    """Return what the image's own Python finds in it."""
    if engine == "buildah":
        container = _run(engine, "from", "--pull-never", tag).strip()
        try:
            printed = _run(engine, "run", container, "--", "python", "-c", LOOK)
        finally:
            _run(engine, "rm", container)
    else:
        printed = _run(engine, "run", "--rm", "--network", "none", "--entrypoint", "python", tag, "-c", LOOK)
    found: dict[str, Any] = json.loads(printed)
    return found


def _push(engine: str, tag: str) -> str:
    """Push an image and return the digest of its manifest, `sha256:…`."""
    say(f"pushing {tag}")
    if engine == "docker":
        _run(engine, "push", "--quiet", tag)
        known: list[str] = json.loads(_run(engine, "image", "inspect", "--format", "{{json .RepoDigests}}", tag))
        repository = tag.rpartition(":")[0]
        return next(each for each in known if each.startswith(f"{repository}@")).partition("@")[2]
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "digest"
        _run(engine, "push", "--quiet", "--digestfile", str(file), tag, f"docker://{tag}")
        return file.read_text().strip()


def _is_modified(name: str) -> bool:
    """Return whether an input of an image differs from the commit that the provenance names."""
    return bool(_run("git", "-C", str(ROOT), "status", "--porcelain", "--", *map(str, TARGETS[name].inputs())))


def _run(*command: str) -> str:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)  # noqa: S603  ours
    if done.returncode:
        raise BuildError(f"{' '.join(command[:2])} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Publish what is asked for, print the names, one a line, and write the chart's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET", choices=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--registry", required=True, help="what the names begin with")
    parser.add_argument("--base", help="a Python 3.11 on Debian, with venv (default: the public python image)")
    options = parser.parse_args()
    names = {}
    try:
        for target in options.targets:
            names[target] = publish(target, registry=options.registry, base=options.base)
            sys.stdout.write(names[target] + "\n")
    except BuildError as failure:
        sys.exit(f"images: {failure}")
    (FOLDER / "images.yaml").write_text(values(names))
    say(f"helm takes them with --values {(FOLDER / 'images.yaml').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
