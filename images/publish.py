"""Builds images, pushes them to a registry, and writes by which digest they lie there and what is in them.

    python -m images.publish operator cpu tpu --registry europe-docker.pkg.dev/project/repository
    python -m images.publish operator cpu --arch amd64 arm64 --registry europe-docker.pkg.dev/project/repository

Below build/publish it leaves `images.yaml`, values with which the chart takes these very images, and for each image and
architecture its bill of materials and its provenance (`images/bill.py`). An image that holds anything but its lock, or
a program for another processor, is not pushed.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from images.bill import Built, Content, bill, content, differences, locked, normalised, provenance
from images.build import ARCHITECTURES, ROOT, TARGETS, build, default_base, machine, refuse, revision
from images.content import look
from images.engine import BuildError, engine_here, run, say
from images.push import push, push_index

FOLDER = ROOT / "build" / "publish"
_OURS = {"operator": ("shardwise", "shardwise-operator")}


def publish(
    name: str,
    *,
    registry: str,
    architectures: Sequence[str] = (),
    base: str | None = None,
    folder: Path = FOLDER,
) -> str:
    """Build an image for each architecture, push and describe them, and return the name with the digest of the whole.

    One architecture is an image by itself; several are an index, below whose tag each node finds its own.

    Args:
        name: of the target: operator, cpu, tpu or gpu.
        registry: what its name begins with; whoever calls has logged in there.
        architectures: amd64 and arm64 or one of them; by default this machine's.
        base: the image it starts from; by default that of `build`.
        folder: where the bills of materials and the provenances are written.

    Raises:
        BuildError: there is no engine, there are no wheels for an architecture, a build or a push failed, or an image
            holds anything but its lock or a program of another architecture.
    """
    wanted = tuple(dict.fromkeys(architectures)) or (machine(),)
    for architecture in wanted:
        refuse(name, architecture)
    engine, tag = engine_here(), TARGETS[name].tag(registry)
    repository, digests = tag.rpartition(":")[0], []
    for architecture in wanted:
        start = base or default_base(engine, architecture)
        pinned = _pinned(engine, start, architecture)
        # buildah's base may be of this machine alone, where no registry knows its digest.
        asked = base if engine == "buildah" else pinned
        image = build(name, architecture=architecture, registry=registry, base=asked)
        found = _checked(engine, name, image, architecture)
        digests.append(push(engine, image, tag if len(wanted) == 1 else f"{tag}-{architecture}"))
        made = _built(name, tag, architecture, engine=engine, base=pinned, digest=digests[-1])
        _describe(folder / f"{name}-{architecture}", made, found)
    digest = push_index(engine, tag, [f"{repository}@{each}" for each in digests]) if len(wanted) > 1 else digests[0]
    return f"{repository}@{digest}"


def _built(name: str, tag: str, architecture: str, *, engine: str, base: str, digest: str) -> Built:
    """Return what the image for one architecture, that lies in the registry by this digest, was built from."""
    target = TARGETS[name]
    paths = (f"requirements/{target.lock}.txt", "requirements/image.txt", f"images/{target.containerfile}")
    return Built(
        image=tag.rpartition(":")[0],
        digest=digest,
        version=_version(name, tag),
        revision=revision(target),
        modified=_is_modified(name),
        engine=engine,
        base=base,
        architecture=architecture,
        files={path: hashlib.sha256((ROOT / path).read_bytes()).hexdigest() for path in paths},
    )


def _describe(path: Path, built: Built, found: Content) -> None:
    """Write the bill of materials and the provenance beside each other; `path` has no suffix yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.cdx.json").write_text(bill(built, found) + "\n")
    statement = json.dumps(provenance(built, datetime.now(UTC)), indent=1)
    Path(f"{path}.provenance.json").write_text(statement + "\n")


def _checked(engine: str, name: str, image: str, architecture: str) -> Content:
    """Return what is in an image, which has to be its lock and our own, for its own architecture."""
    seen = look(engine, image, architecture)
    if seen["foreign"]:
        raise BuildError(f"{image} holds what no {architecture} can run: {', '.join(seen['foreign'])}")
    target = TARGETS[name]
    version = _version(name, target.tag(""))
    expected = locked((ROOT / "requirements" / f"{target.lock}.txt").read_text())
    expected |= dict.fromkeys(map(normalised, _OURS.get(name, ("shardwise",))), version)
    found = content(seen)
    if wrong := differences(found.distributions, expected):
        raise BuildError(f"{image} does not hold what {target.lock}.txt locks: {'; '.join(wrong)}")
    return found


def _version(name: str, tag: str) -> str:
    """Return the version of Shardwise in a tag."""
    return tag.rpartition(":")[2].removesuffix(TARGETS[name].suffix)


def values(names: Mapping[str, str]) -> str:
    """Return values of the chart for images by their targets, as YAML."""
    return "images:\n" + "".join(f"  {target}: {name}\n" for target, name in names.items())


def _pinned(engine: str, base: str, architecture: str) -> str:
    """Return an image's name with its digest; it is fetched first, if need be."""
    if engine == "buildah":
        run(engine, "pull", "--quiet", "--policy", "missing", "--platform", f"linux/{architecture}", base)
        digest = run(engine, "inspect", "--type=image", "--format", "{{.FromImageDigest}}", base).strip()
        return f"{base.partition('@')[0]}@{digest}"
    run(engine, "pull", "--quiet", "--platform", f"linux/{architecture}", base)
    return run(engine, "image", "inspect", "--format", "{{index .RepoDigests 0}}", base).strip()


def _is_modified(name: str) -> bool:
    """Return whether an input of an image differs from the commit that the provenance names."""
    return bool(run("git", "-C", str(ROOT), "status", "--porcelain", "--", *map(str, TARGETS[name].paths())))


def main() -> None:
    """Publish what is asked for, print the names, one a line, and write the chart's values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="TARGET", choices=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--registry", required=True, help="what the names begin with")
    parser.add_argument(
        "--arch", nargs="+", choices=ARCHITECTURES, default=[machine()], help="for which (default: this)"
    )
    parser.add_argument("--base", help="a Python 3.11 on Debian, with venv (default: the public python image)")
    options = parser.parse_args()
    names = {}
    try:
        for target in options.targets:
            for architecture in options.arch:
                refuse(target, architecture)
        for target in options.targets:
            names[target] = publish(target, registry=options.registry, architectures=options.arch, base=options.base)
            sys.stdout.write(names[target] + "\n")
    except BuildError as failure:
        sys.exit(f"images: {failure}")
    (FOLDER / "images.yaml").write_text(values(names))
    say(f"helm takes them with --values {(FOLDER / 'images.yaml').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
