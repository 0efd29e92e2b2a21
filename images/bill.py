"""What is in an image, as a bill of materials (CycloneDX 1.6) and a statement of how it was built (SLSA provenance v1).

The bill has the Python distributions that are installed in the image, which must be those of its lock and our own, its
Python, and Debian's packages. The statement is not signed: that takes a key of yours, see images/README.md.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Content:
    """What is in an image.

    Attributes:
        python: the version of its Python.
        distributions: the version of each installed Python distribution, by its normalised name.
        debian: the name, the version and the architecture of each package of Debian.

    """

    python: str
    distributions: Mapping[str, str]
    debian: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Built:
    """An image as it lies in a registry, and what it was built from.

    Attributes:
        image: its name without a tag.
        digest: of its manifest, `sha256:…`.
        version: of Shardwise.
        revision: the commit that its files come from.
        modified: whether the tree had changes of these files that are not committed.
        engine: what built it.
        base: the image it starts from, with its digest.
        architecture: whose programs it holds, amd64 or arm64.
        files: the SHA-256 of each file that decides what is installed, by its path in the tree.

    """

    image: str
    digest: str
    version: str
    revision: str
    modified: bool
    engine: str
    base: str
    architecture: str
    files: Mapping[str, str]


def normalised(name: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, str]:
    """Return the version of every distribution that a lock has, by its normalised name."""
    return {normalised(name): version for name, version in PIN.findall(text)}


def content(found: Mapping[str, Any]) -> Content:
    """Return what `images.content.scan` found as an image's content."""
    distributions = {normalised(name): version for name, version in found["distributions"].items()}
    debian = []
    for paragraph in found["debian"].split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            debian.append((fields["Package"], fields["Version"], fields["Architecture"]))
    return Content(found["python"], distributions, debian)


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return what of distributions is there more, less or in another version than expected, for people."""
    names = sorted({*found, *expected})
    pairs = [(name, found.get(name, "none"), expected.get(name, "none")) for name in names]
    return [f"{name}: {there} in place of {pin}" for name, there, pin in pairs if there != pin]


def bill(built: Built, there: Content) -> str:
    """Return the bill of materials of an image as JSON. The same image has the same bill, so its time is 1970."""
    whole = Component(
        name=built.image,
        version=built.digest,
        type=ComponentType.CONTAINER,
        bom_ref=f"{built.image}@{built.digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=built.digest.removeprefix("sha256:"))],
    )
    parts = [_part(PackageURL("generic", None, "cpython", there.python))]
    parts += [_part(PackageURL("pypi", None, name, version)) for name, version in there.distributions.items()]
    for name, version, architecture in there.debian:
        parts.append(_part(PackageURL("deb", "debian", name, version, {"arch": architecture})))
    made = Bom(
        components=parts,
        metadata=BomMetaData(component=whole, timestamp=datetime.fromtimestamp(0, UTC)),
        serial_number=uuid5(NAMESPACE_URL, f"{built.image}@{built.digest}"),
    )
    made.register_dependency(whole, parts)
    return JsonV1Dot6(made).output_as_string(indent=1)


def provenance(built: Built, at: datetime) -> dict[str, Any]:
    """Return an in-toto statement of what an image was built from, and by what; `at` is when it was published."""
    name, _, digest = built.base.partition("@sha256:")
    sources = [{"uri": f"git+file:{path}", "digest": {"sha256": sha}} for path, sha in sorted(built.files.items())]
    base = {"uri": f"docker:{name}", "digest": {"sha256": digest}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": built.image, "digest": {"sha256": built.digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:shardwise:images:build",
                "externalParameters": {
                    "version": built.version,
                    "base": built.base,
                    "platform": f"linux/{built.architecture}",
                },
                "internalParameters": {"engine": built.engine, "modified": built.modified},
                "resolvedDependencies": [{"uri": "git", "digest": {"gitCommit": built.revision}}, base, *sources],
            },
            "runDetails": {
                "builder": {"id": "urn:shardwise:images:publish"},
                "metadata": {"finishedOn": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
            },
        },
    }


def _part(url: PackageURL) -> Component:
    kind = ComponentType.LIBRARY
    return Component(name=url.name, version=url.version, type=kind, purl=url, bom_ref=url.to_string())
