"""shardwise.job.accelerators and topology: classes of machine as data."""

import re
from pathlib import Path

import pytest
import yaml
from tests.job.wrong_files import QUICKSTART
from tests.plan.table import of_platform

from shardwise.job.accelerators import (
    BUILT_IN,
    CLASS_VARIABLE,
    class_of,
    load_class,
    loads_class,
    offered,
    offering,
)
from shardwise.job.document import write_document
from shardwise.job.load import as_data, load
from shardwise.job.quantity import Quantity
from shardwise.job.spec import Hardware
from shardwise.job.topology import Topology, host_resources, node_labels, parse_topology, topologies
from shardwise.protocol import pods
from shardwise.protocol.errors import JobError

IN_CLUSTER = Path(__file__).parent / "golden" / "in-cluster.yaml"
ACCELERATORS = Path(__file__).parents[2] / "docs" / "accelerators.md"

OWN = """
apiVersion: shardwise.dev/v1alpha1
kind: AcceleratorClass
metadata: {name: own}
spec:
  platform: tpu
  description: chips of our own
  kernels: [plain]
  machines: [{name: m2, chips: 2, topologies: [2x1, 2x2]}, {name: m8, chips: 8, topologies: [2x4]}]
  devicesPerChip: 2
  deviceResource: example.com/chip
  resources: {rdma/ib: "1"}
  nodeSelector: {grid: "g-{topology}", type: "{machine}", zone: a}
"""


@pytest.mark.parametrize(
    ("name", "topology", "hosts", "devices"),
    [
        ("cpu-sim", "2x4", 2, 4),
        ("gpu", "16x8", 16, 8),
        ("eks-gpu-h100", "4x8", 4, 8),
        ("eks-gpu-h200", "4x8", 4, 8),
        ("gke-gpu-b200", "4x8", 4, 8),
        ("gke-gpu-gb200", "4x4", 4, 4),
        ("gke-gpu-h100", "4x8", 4, 8),
        ("gke-gpu-h100-mega", "4x8", 4, 8),
        ("gke-gpu-h200", "2x8", 2, 8),
        ("gpu-h100", "2x8", 2, 8),
        ("tpu-v4", "2x2x1", 1, 4),
        ("tpu-v4", "2x4x4", 8, 4),
        ("tpu-v4", "4x4x4", 16, 4),
        ("tpu-v4", "16x16x16", 1024, 4),
        ("tpu-v5e", "1x1", 1, 1),
        ("tpu-v5e", "2x2", 1, 4),
        ("tpu-v5e", "2x4", 1, 8),
        ("tpu-v5e-4t", "2x4", 2, 4),
        ("tpu-v5e", "4x4", 4, 4),
        ("tpu-v5e", "4x8", 8, 4),
        ("tpu-v5e", "8x8", 16, 4),
        ("tpu-v5e", "8x16", 32, 4),
        ("tpu-v5e", "16x16", 64, 4),
        ("tpu-v5p", "2x2x2", 2, 4),
        ("tpu-v5p", "2x2x4", 4, 4),
        ("tpu-v5p", "16x16x24", 1536, 4),
        ("tpu-v6e", "2x4", 1, 8),
        ("tpu-v6e-4t", "2x4", 2, 4),
        ("tpu-v6e", "16x16", 64, 4),
        ("tpu-v7x", "2x2x1", 1, 8),
        ("tpu-v7x", "4x4x8", 32, 8),
        ("tpu-v7x", "8x16x16", 512, 8),
    ],
)
def test_topologies_are_hosts_and_devices(name: str, topology: str, hosts: int, devices: int) -> None:
    """Each generation's grids are as many hosts as Google says, and JAX sees two devices of a v7x chip."""
    found = parse_topology(BUILT_IN[name], topology)

    assert found is not None
    assert (found.hosts, found.devices_per_host) == (hosts, devices)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("cpu-sim", "65x1"),
        ("cpu-sim", "1x65"),
        ("cpu-sim", "8"),
        ("gke-gpu-h200", "2x4"),
        ("tpu-v5e-4t", "1x1"),
        ("tpu-v5e", "4x2"),
        ("tpu-v5e", "32x16"),
        ("tpu-v4", "16x16x20"),
        ("tpu-v4", "2x2x8"),
        ("tpu-v5p", "4x4x6"),
        ("tpu-v5p", "8x4x4"),
        ("tpu-v5p", "20x20x24"),
        ("tpu-v5p", "16x20x28"),
        ("tpu-v7x", "4x8x12"),
    ],
)
def test_near_misses_are_no_topologies(name: str, topology: str) -> None:
    """What nobody builds is not taken for its neighbour."""
    assert parse_topology(BUILT_IN[name], topology) is None


def test_large_grids_are_cubes_up_to_a_limit() -> None:
    """Beyond 2x4x4 all sides of a v5p are multiples of 4 in rising order, with at most 96 cubes of 4x4x4."""
    for grid in topologies(BUILT_IN["tpu-v5p"])[4:]:
        a, b, c = (int(side) // 4 for side in grid.split("x"))
        assert grid == f"{4 * a}x{4 * b}x{4 * c}"
        assert a <= b <= c
        assert a * b * c <= 96


def test_a_class_says_where_its_pods_go() -> None:
    """Labels are filled in with the job's topology and its machine, and a host asks for chips, not devices."""
    own = loads_class(OWN)
    hardware = Hardware(accelerator="own", topology="2x4")

    assert parse_topology(own, "2x4") == Topology(hosts=1, devices_per_host=16, machine="m8")
    assert node_labels(own, hardware) == {"grid": "g-2x4", "type": "m8", "zone": "a"}
    assert host_resources(own, Topology(hosts=1, devices_per_host=16)) == {"example.com/chip": "8", "rdma/ib": "1"}
    assert host_resources(BUILT_IN["cpu-sim"], Topology(hosts=1, devices_per_host=8)) == {}


@pytest.mark.parametrize("name", BUILT_IN)
def test_classes_are_written_and_read_back(name: str) -> None:
    """A class survives YAML, and the object that a cluster makes of it."""
    accelerator = BUILT_IN[name]
    manifest = as_data(accelerator)

    assert accelerator.name == name
    assert loads_class(write_document(manifest)) == accelerator
    assert class_of({**manifest, "metadata": {"name": name, "uid": "1", "managedFields": []}}) == accelerator


def test_offered_classes_are_all_there_is_inside_the_block() -> None:
    """The operator checks against the classes of its cluster alone, and what was before is back afterwards."""
    with offering([loads_class(OWN)]):
        assert list(offered()) == ["own"]
        with pytest.raises(JobError, match="expected own"):
            load(IN_CLUSTER)
    assert offered() is BUILT_IN


def test_a_file_adds_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's class stands beside the built-in ones, and replaces one of its name."""
    path = tmp_path / "class.yaml"
    path.write_text(OWN.replace("own}", "cpu-sim}"))
    monkeypatch.setenv(CLASS_VARIABLE, str(path))

    assert offered()["cpu-sim"].spec.description == "chips of our own"
    assert set(offered()) == set(BUILT_IN)


def test_a_class_that_a_newer_operator_has_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knows more is about pods, and left out; a person's mistake is refused all the same."""
    for folder in ("mount", "home"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "class.yaml").write_text(OWN.replace("spec:", "spec:\n  colour: red"))
    monkeypatch.setattr(pods, "JOB_MOUNT", str(tmp_path / "mount"))
    monkeypatch.setenv(CLASS_VARIABLE, str(tmp_path / "mount" / "class.yaml"))
    assert offered()["own"].spec.description == "chips of our own"
    manifest = yaml.safe_load((tmp_path / "mount" / "class.yaml").read_text())
    assert class_of(manifest) == offered()["own"]

    monkeypatch.setenv(CLASS_VARIABLE, str(tmp_path / "home" / "class.yaml"))
    with pytest.raises(JobError, match="colour"):
        offered()


@pytest.mark.parametrize(
    ("old", "new", "fragments"),
    [
        ("kernels: [plain]", "kernels: [fast]", ["spec.kernels.0", 'given "fast"', "one of plain, "]),
        ("topologies: [2x4]", "topologies: [2x3]", ["machines.1.topologies.0", "whole machines of 8 chips, not 6"]),
        ("topologies: [2x4]", "topologies: [2x2]", ["each grid once", "m2"]),
        ("type: ", "zone: {a: b}, type: ", ["class.yaml"]),
        ("{machine}", "{rack}", ["spec.nodeSelector.type", "{topology} and {machine}"]),
        ("devicesPerChip: 2", "hosts: {max: 2, maxDevices: 2}", ["both machines and hosts"]),
        ("machines: [", "hosts: {max: 2, minDevices: 3, maxDevices: 2}\n  x: [", ["one of platform"]),
        (
            "devicesPerChip: 2",
            "compiler: {target: v5p, flags: [{flag: --xla_tpu_spmd_rng_bit_generator_unsafe=true, reason: a}]}",
            ["spec.compiler.flags", "options without it", "would depend on the mesh"],
        ),
        (
            "devicesPerChip: 2",
            "compiler: {target: v5p, flags: [{flag: --xla_dump_to=/a, reason: a}, {flag: --xla_dump_to, reason: b}]}",
            ["spec.compiler.flags", "--xla_dump_to more than once", "each option once"],
        ),
        ("devicesPerChip: 2", "deviceMemory: 0", ["spec.deviceMemory", 'given "0"', "a quantity above 0"]),
        (
            "devicesPerChip: 2",
            "peakFlops: {bfloat16: 0.0T, float32: 1T}",
            ["spec.peakFlops.bfloat16", 'given "0.0T"', "a quantity above 0"],
        ),
        ("chips: 8,", "chips: 8, networkBandwidth: 0e3,", ["spec.machines.1.networkBandwidth", "a quantity above 0"]),
        *(
            (
                "devicesPerChip: 2",
                f"env: [{{name: XLA_PYTHON_CLIENT_MEM_FRACTION, value: '{share}'}}]",
                ["spec.env.0.value", f'given "{share}"', "a number above 0, up to 1"],
            )
            for share in ("90%", "0", "1.5", "nan")
        ),
        (
            "devicesPerChip: 2",
            "hostPaths: [{name: a, path: /a, mountPath: /a}]",
            ['podSecurity: given "restricted"', "privileged"],
        ),
        (
            "devicesPerChip: 2",
            "sidecars: [{name: a, image: a}]",
            ['podSecurity: given "restricted"', "privileged, which hostPaths and sidecars need"],
        ),
        (
            "devicesPerChip: 2",
            "podSecurity: privileged\n  sidecars: [{name: agent, image: a}, {name: b, image: b}, {name: b, image: c}]",
            ['sidecars.0.name: given "agent"', 'sidecars.2.name: given "b", expected a name apart from agent'],
        ),
    ],
)
def test_wrong_classes_are_refused(old: str, new: str, fragments: list[str], tmp_path: Path) -> None:
    """A platform team's mistake is named as a job's is."""
    assert old in OWN
    path = tmp_path / "class.yaml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(JobError) as refused:
        load_class(path)
    for fragment in fragments:
        assert fragment in str(refused.value)


def test_the_class_of_the_documentation_is_right() -> None:
    """What a platform team copies is a class, with the hosts that it says."""
    own = loads_class(ACCELERATORS.read_text().partition("```yaml\n")[2].partition("```")[0])

    assert parse_topology(own, "4x8") == Topology(hosts=8, devices_per_host=4, machine="ct6e-standard-4t")


@pytest.mark.parametrize("name", [name for name in BUILT_IN if BUILT_IN[name].spec.peak_flops])
def test_the_documentation_has_the_figures_of_each_class(name: str) -> None:
    """The table of docs/accelerators.md says what the class says, in units for people."""
    spec = BUILT_IN[name].spec
    assert spec.device_memory
    assert spec.memory_bandwidth
    assert spec.peak_flops
    assert spec.interconnect
    networks = [machine.network_bandwidth for machine in spec.machines]
    networks += [spec.hosts.network_bandwidth] if spec.hosts else []
    in_8_bits = {"float8": spec.peak_flops.float8, "int8": spec.peak_flops.int8}
    cells = (
        f"`{name}`",
        f"{float(spec.device_memory.value) / 2**30:.2f} GiB",
        _in(1e9, spec.memory_bandwidth),
        _in(1e12, spec.peak_flops.bfloat16),
        _in(1e12, spec.peak_flops.float32),
        ", ".join(f"{form} {_in(1e12, peak)}" for form, peak in in_8_bits.items() if peak),
        f"{spec.interconnect.axes} x {_in(1e9, spec.interconnect.bandwidth)}",
        ", ".join(_in(1e9, network) for network in networks if network),
    )

    assert f"| {' | '.join(cells)} |\n" in ACCELERATORS.read_text()


@pytest.mark.parametrize(
    ("hardware", "form", "others"),
    [
        ("{accelerator: tpu-v5e, topology: 4x4}", "float8", "compute, int8"),
        ("{accelerator: tpu-v7x, topology: 2x2x1}", "int8", "compute, float8"),
        ("{accelerator: tpu-v4, topology: 2x2x1}", "float8", "compute"),
    ],
)
def test_products_in_8_bits_are_for_what_multiplies_in_them(hardware: str, form: str, others: str) -> None:
    """Others would widen them first, which is slower than to round nothing; the refusal has what there is."""
    words = [f"hardware={hardware}", "training.batch.sequences=64", "training.precision.compute=bfloat16"]
    with pytest.raises(JobError) as refused:
        load(QUICKSTART, [*words, f"training.precision.products={form}"])

    assert f'spec.training.precision.products: given "{form}"' in str(refused.value)
    assert f"multiplies: {others}" in str(refused.value)


def test_the_documentation_has_the_options_of_each_class() -> None:
    """The second table of docs/accelerators.md names each class with each of its options, and no other class."""
    rows = re.findall(r"^\| ([^|]+) \| (`xla_[^|]+) \|", ACCELERATORS.read_text(), re.MULTILINE)
    written = {name: re.findall(r"\w+", options) for names, options in rows for name in re.findall(r"`(.+?)`", names)}
    of_classes = {name: BUILT_IN[name].spec.compiler for name in BUILT_IN}
    said = {
        name: [one.flag.removeprefix("--").partition("=")[0] for one in compiler.flags]
        for name, compiler in of_classes.items()
        if compiler and compiler.flags
    }

    assert written == said


def test_the_documentation_says_what_was_tried_of_each_class() -> None:
    """Each class has one row; none says that a program was compiled for it of which the tests compile none."""
    text = ACCELERATORS.read_text().partition("## What was tried")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    said = [(name, programs) for names, _, programs in rows for name in re.findall(r"`(.+?)`", names)]

    assert sorted(name for name, _ in said) == sorted(BUILT_IN)
    compiled = {name for name, programs in said if programs.startswith("compiled")}
    assert compiled == {row.accelerator for row in of_platform("gpu", "tpu")}


def _in(unit: float, quantity: Quantity) -> str:
    return f"{float(quantity.value) / unit:.6g}"
