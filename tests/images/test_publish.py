"""`make publish`: an image in a registry, by its digest, with its bill of materials and its provenance."""

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
from images.build import TARGETS, engine_here, environment
from images.publish import publish, values

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """Return a registry without TLS that the engine takes; what was built for it goes afterwards."""
    with registry() as running:
        trusted = tmp_path / "registries.conf"
        trusted.write_text(f'[[registry]]\nlocation = "{running.name}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(trusted))
        yield running
        tag = TARGETS["operator"].tag(running.name)
        subprocess.run([engine_here(), "rmi", tag], env=environment(), capture_output=True, check=True)


def test_an_image_is_published_by_its_digest(server: Registry, tmp_path: Path) -> None:
    """The registry has the manifest of that digest; the bill has the lock and our code; the chart takes the name."""
    name = publish("operator", registry=server.name, folder=tmp_path)

    image, _, digest = name.partition("@")
    assert image == f"{server.name}/shardwise-operator"
    manifest = server.manifests["shardwise-operator", digest]
    assert digest == f"sha256:{sha256(manifest).hexdigest()}"
    parts = json.loads(manifest)
    assert {parts["config"]["digest"], *(layer["digest"] for layer in parts["layers"])} <= server.blobs
    made = json.loads((tmp_path / "operator.cdx.json").read_text())
    assert made["metadata"]["component"]["version"] == digest
    urls = [each["purl"] for each in made["components"]]
    found = {url.removeprefix("pkg:pypi/").partition("@")[0] for url in urls if url.startswith("pkg:pypi/")}
    lock = locked((ROOT / "requirements" / "operator.txt").read_text())
    assert found == {*lock, "shardwise", "shardwise-operator"}
    assert any(url.startswith("pkg:deb/debian/libc6@") for url in urls)
    statement = json.loads((tmp_path / "operator.provenance.json").read_text())
    assert statement["subject"] == [{"name": image, "digest": {"sha256": digest.removeprefix("sha256:")}}]

    (tmp_path / "images.yaml").write_text(values({"operator": name, "cpu": f"{server.name}/trainer@{digest}"}))
    rendered = Helm()("template", "shardwise", CHARTS / "shardwise", "--values", tmp_path / "images.yaml")
    (operator,) = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "Deployment"]
    container = operator["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == name
    assert f"{server.name}/trainer@{digest}" in " ".join(container["args"])
