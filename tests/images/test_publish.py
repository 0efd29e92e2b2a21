"""`make publish`: images in a registry, by their digest, with their bills of materials and their provenance."""

import json
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import CHARTS, Helm
from tests.images.registry import Registry, registry

sys.path.append(str(Path(__file__).parents[2]))
from images.bill import locked  # the folder is no package
from images.build import ARCHITECTURES, TARGETS, machine, revision
from images.engine import BuildError, engine_here, environment
from images.publish import _is_modified, publish, values
from images.push import push

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Return a registry without TLS that the engine takes; what was built for it goes afterwards."""
    with registry() as running:
        trusted = tmp_path / "registries.conf"
        trusted.write_text(f'[[registry]]\nlocation = "{running.name}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(trusted))
        yield running
        tags = [TARGETS["operator"].local(running.name, architecture) for architecture in ARCHITECTURES]
        subprocess.run([engine_here(), "rmi", *tags], env=environment(), capture_output=True, check=True)


@pytest.mark.long  # minutes; test_images.py runs what is built
def test_images_are_published_by_the_digest_of_their_index(server: Registry, tmp_path: Path) -> None:
    """The registry has an image for each architecture, with bill and provenance; the chart takes them all."""
    name = publish("operator", registry=server.name, architectures=ARCHITECTURES, folder=tmp_path)

    image, _, digest = name.partition("@")
    assert image == f"{server.name}/shardwise-operator"
    index = server.manifests["shardwise-operator", digest]
    assert digest == f"sha256:{sha256(index).hexdigest()}"
    version = TARGETS["operator"].tag("").rpartition(":")[2]
    assert server.manifests["shardwise-operator", version] == index
    members = {each["platform"]["architecture"]: each for each in json.loads(index)["manifests"]}
    assert {name: each["platform"]["os"] for name, each in members.items()} == dict.fromkeys(ARCHITECTURES, "linux")
    for architecture, member in members.items():
        _is_whole(server, member["digest"], architecture)
        _is_described(tmp_path / f"operator-{architecture}", image, member["digest"], architecture)

    (tmp_path / "images.yaml").write_text(values({"operator": name, "cpu": f"{server.name}/trainer@{digest}"}))
    rendered = Helm()("template", "shardwise", CHARTS / "shardwise", "--values", tmp_path / "images.yaml")
    (operator,) = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "Deployment"]
    container = operator["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == name
    assert f"{server.name}/trainer@{digest}" in " ".join(container["args"])

    alone = publish("operator", registry=server.name, folder=tmp_path).partition("@")[2]
    assert server.manifests["shardwise-operator", version] == server.manifests["shardwise-operator", alone]
    _is_whole(server, alone, machine())


def _is_whole(server: Registry, digest: str, architecture: str) -> None:
    """The manifest and all that it names are there, and its configuration is that of the architecture."""
    manifest = server.manifests["shardwise-operator", digest]
    assert digest == f"sha256:{sha256(manifest).hexdigest()}"
    parts = json.loads(manifest)
    assert {parts["config"]["digest"], *(layer["digest"] for layer in parts["layers"])} <= server.blobs.keys()
    config = json.loads(server.blobs[parts["config"]["digest"]])
    assert config["architecture"] == architecture
    assert config["config"]["User"] == "10001:10001"
    assert len(parts["layers"]) == 4  # the base, the dependencies, our own code, the licence


def _is_described(path: Path, image: str, digest: str, architecture: str) -> None:
    """The bill has the lock, our code and the architecture's packages of Debian; the provenance is of this image."""
    made = json.loads(Path(f"{path}.cdx.json").read_text())
    assert made["metadata"]["component"]["version"] == digest
    urls = [each["purl"] for each in made["components"]]
    found = {url.removeprefix("pkg:pypi/").partition("@")[0] for url in urls if url.startswith("pkg:pypi/")}
    lock = locked((ROOT / "requirements" / "operator.txt").read_text())
    assert found == {*lock, "shardwise", "shardwise-operator"}
    (library,) = [url for url in urls if url.startswith("pkg:deb/debian/libc6@")]
    assert library.endswith(f"?arch={architecture}")
    statement = json.loads(Path(f"{path}.provenance.json").read_text())
    assert statement["subject"] == [{"name": image, "digest": {"sha256": digest.removeprefix("sha256:")}}]
    parameters = statement["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["platform"] == f"linux/{architecture}"


def test_an_image_without_wheels_is_refused() -> None:
    """Libtpu is for x86-64 alone, which is said before anything is built."""
    with pytest.raises(BuildError, match="tpu cannot be built for arm64: libtpu has no wheel for it"):
        publish("tpu", registry="registry.invalid", architectures=ARCHITECTURES)


@pytest.mark.parametrize(
    ("repository", "familiar"),
    [
        ("europe-docker.pkg.dev/a/b/shardwise-operator", "europe-docker.pkg.dev/a/b/shardwise-operator"),
        ("docker.io/acme/shardwise-operator", "acme/shardwise-operator"),
        ("docker.io/library/shardwise-operator", "shardwise-operator"),
    ],
)
def test_docker_calls_an_image_by_its_familiar_name(
    monkeypatch: pytest.MonkeyPatch, repository: str, familiar: str
) -> None:
    """Docker leaves out what is its own registry's; the digest is found, and no other repository's is taken for it."""
    known = [f"elsewhere/{familiar}@sha256:0", f"{familiar}@sha256:1"]
    monkeypatch.setattr("images.push.run", lambda *words: json.dumps(known) if words[1] == "image" else "")

    assert push("docker", "localhost/x:1", f"{repository}:0.1.0") == "sha256:1"

    known.pop()
    with pytest.raises(BuildError, match=f"docker names no digest of {repository}:0.1.0"):
        push("docker", "localhost/x:1", f"{repository}:0.1.0")


def test_a_deleted_source_is_a_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The image cannot be made from the commit before: it is modified until a commit has it, which is then named."""
    monkeypatch.setattr("images.build.ROOT", tmp_path)
    monkeypatch.setattr("images.publish.ROOT", tmp_path)
    gone = "trainer/shardwise/job/b.py"
    first = _git(tmp_path, "operator/shardwise_operator/a.py", gone)
    assert (revision(TARGETS["operator"]), _is_modified("operator")) == (first, False)

    (tmp_path / gone).unlink()
    assert (revision(TARGETS["operator"]), _is_modified("operator")) == (first, True)

    second = _committed(tmp_path)
    assert (revision(TARGETS["operator"]), _is_modified("operator")) == (second, False)


def _git(root: Path, *names: str) -> str:
    """Make a repository with some files and return its commit."""
    for name in names:
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(name)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return _committed(root)


def _committed(root: Path) -> str:
    """Commit all that has changed and return the commit."""
    git = ("git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "x"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
