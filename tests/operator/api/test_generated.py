"""What is checked in of the chart is what the types say, and the catalogue says what the classes say."""

from pathlib import Path

from shardwise.job.accelerators import BUILT_IN, load_class
from shardwise.job.load import as_data
from shardwise_operator.api.catalog import catalog_of
from shardwise_operator.api.generate import files

CHART = Path(__file__).parents[3] / "charts" / "shardwise"
FOLDERS = ("crds", "files")


def test_generated_files_are_checked_in() -> None:
    """`make crds` would change nothing, and leaves nothing of before behind."""
    expected = dict(files())
    there = {str(path.relative_to(CHART)) for folder in FOLDERS for path in (CHART / folder).rglob("*.yaml")}

    assert there == set(expected)
    for name, text in expected.items():
        assert (CHART / name).read_text() == text, f"{name} is not what `make crds` writes"


def test_the_charts_classes_are_the_built_in_ones() -> None:
    """A class as the chart installs it means the same as the one that a laptop checks with."""
    for name, accelerator in BUILT_IN.items():
        assert load_class(CHART / "files" / "classes" / f"{name}.yaml") == accelerator


def test_the_catalogue_has_devices_of_each_grid() -> None:
    """Classes are in order with their options, grids carry the devices that JAX sees, and a wrong class is left out."""
    manifests = [as_data(BUILT_IN[name]) for name in ("tpu-v7x", "cpu-sim", "gke-gpu-l4")]
    wrong = {**manifests[0], "metadata": {"name": "a"}, "spec": {}}
    sim, l4, v7x = catalog_of([*manifests, wrong])["spec"]["classes"]

    assert sim == {
        "name": "cpu-sim",
        "kernels": ["plain", "blockwise"],
        "maxHosts": 64,
        "minDevices": 1,
        "maxDevices": 64,
    }
    assert l4["flags"] == ["--xla_gpu_enable_latency_hiding_scheduler=true"]
    assert v7x["topologies"][0] == {"topology": "2x2x1", "devices": 8, "hosts": 1}
