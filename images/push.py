"""Pushes an image, and an index over the images of several architectures, for `images/publish.py`."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from images.engine import BuildError, run, say


def push(engine: str, image: str, tag: str) -> str:
    """Push an image of the engine's store under a tag and return the digest of its manifest, `sha256:…`.

    Raises:
        BuildError: the registry does not take it.
    """
    say(f"pushing {tag}")
    if engine == "docker":
        run(engine, "tag", image, tag)
        run(engine, "push", "--quiet", tag)
        return _known_digest(engine, tag)
    return _digest(engine, "push", "--quiet", image, f"docker://{tag}")


def push_index(engine: str, tag: str, members: Sequence[str]) -> str:
    """Put images that lie in a registry below one tag there, and return the digest of the index.

    Args:
        engine: docker (with buildx), podman or buildah.
        tag: of the index.
        members: the name of each image with its digest.

    Raises:
        BuildError: the registry does not take it.
    """
    say(f"pushing {tag}, an index of {len(members)}")
    if engine == "docker":
        run(engine, "buildx", "imagetools", "create", "--tag", tag, *members)
        described = run(engine, "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", tag)
        digest: str = json.loads(described)["digest"]
        return digest
    index = f"localhost/index-{tag.replace(':', '-').replace('/', '-')}".lower()
    # These commands go by no registries.conf; as Docker does, a registry on this machine is taken without TLS.
    options = ("--tls-verify=false",) if tag.startswith(("localhost:", "127.0.0.1:")) else ()
    run(engine, "manifest", "create", index)
    try:
        for member in members:
            run(engine, "manifest", "add", *options, index, f"docker://{member}")
        words = ("manifest", "push", *options, "--quiet", "--all", "--format", "oci", index, f"docker://{tag}")
        return _digest(engine, *words)
    finally:
        run(engine, "manifest", "rm", index)


def _known_digest(engine: str, tag: str) -> str:
    """Return by which digest docker knows an image in the registry of the tag that it was pushed under."""
    known: list[str] = json.loads(run(engine, "image", "inspect", "--format", "{{json .RepoDigests}}", tag))
    repository = tag.rpartition(":")[0]
    familiar = repository.removeprefix("docker.io/").removeprefix("library/")  # it leaves out its own registry
    for each in known:
        name, _, digest = each.partition("@")
        if name in (repository, familiar):
            return digest
    raise BuildError(f"{engine} names no digest of {tag}, which it has pushed; it knows {', '.join(known) or 'none'}")


def _digest(engine: str, *words: str) -> str:
    """Run a command that pushes to the last of the words, and return the digest of what it pushed."""
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "digest"
        run(engine, *words[:-2], "--digestfile", str(file), *words[-2:])
        return file.read_text().strip()
