"""Devices to compile for, of a job's accelerator class, on a machine that has none of them.

TPUs come from libtpu's description of a topology; GPUs from a text file for each kind, in `gpus/`, that XLA takes for
the machine; simulated devices from this machine's own compiler. `plan_environment` of `shardwise.job.environment` must
be set before JAX is imported.
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from shardwise.job.accelerators import accelerator_of
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.job.topology import num_devices, topology_of
from shardwise.protocol.errors import CompilerError
from shardwise.protocol.storage import first_line
from shardwise.protocol.text import any_of

_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""How the chips of one host lie in the grid, by their number."""
_GPUS = Path(__file__).parent / "gpus"
_WHEELS = {"tpu": "shardwise[plan-tpu]", "gpu": "shardwise[plan-gpu]"}
"""The extra by which pip installs the compiler for a platform."""
_MODULES = {"tpu": "libtpu", "gpu": "jax_plugins.xla_cuda12"}


@dataclass(frozen=True)
class NoCompilerError(Exception):
    """The compiler for a platform is not installed."""

    platform: str


def compiles_for(accelerator: AcceleratorClass) -> bool:
    """Return whether the compiler for this class is installed here."""
    module = _MODULES.get(accelerator.spec.platform)
    return module is None or _is_installed(module)


def what_brings(platform: str) -> str:
    """Return what to do so that the compiler for a platform is there; in a checkout `make` has a target for it."""
    of_pip = f'pip install "{_WHEELS[platform]}" brings it'
    if not (Path(sys.prefix).parent / "requirements" / "plan.txt").exists():
        return of_pip
    return f"make setup-plan brings it to .venv-plan/bin/shardwise plan, elsewhere {of_pip}"


def devices_for(job: TrainingJob) -> list[jax.Device]:
    """Return the devices of a resolved job: real ones' descriptions, which can be compiled for and hold nothing.

    Raises:
        NoCompilerError: the compiler for them is not installed.
        CompilerError: the class does not name a target, or names one that the compiler does not know.
    """
    accelerator = accelerator_of(job.spec.hardware)
    if not compiles_for(accelerator):
        raise NoCompilerError(accelerator.spec.platform)
    match accelerator.spec.platform:
        case "tpu":
            return _tpus(job, accelerator)
        case "gpu":
            return _gpus(job, accelerator)
        case "cpu":
            return jax.devices()[: num_devices(job.spec.hardware)]


def _tpus(job: TrainingJob, accelerator: AcceleratorClass) -> list[jax.Device]:
    # Imported where it is used: it is needed for TPUs and GPUs alone.
    from jax.experimental import topologies  # noqa: PLC0415

    hardware = job.spec.hardware
    topology = topology_of(hardware)
    assert topology is not None
    target = _target(accelerator)
    chips = topology.devices_per_host // accelerator.spec.devices_per_chip
    if chips not in _BOUNDS:
        raise CompilerError(f"a plan knows hosts of {any_of(_BOUNDS)} chips, and {accelerator.name} has {chips}")
    options: dict[str, Any] = {"chips_per_host_bounds": _BOUNDS[chips]}
    if hardware.slices > 1:
        options["num_slices"] = hardware.slices
    if target == "v4":  # or each of the two cores of a chip is a device
        options["chip_config_name"] = "megacore"
    name = f"{target}:{hardware.topology}"
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        knows = f"libtpu knows no {name}, for which the class {accelerator.name} stands"
        raise CompilerError(f"{knows}: {first_line(error)}") from error


def _gpus(job: TrainingJob, accelerator: AcceleratorClass) -> list[jax.Device]:
    from jax.experimental import topologies  # noqa: PLC0415

    topology = topology_of(job.spec.hardware)
    assert topology is not None
    target = _target(accelerator)
    known = {path.stem: path for path in sorted(_GPUS.glob("*.txtpb"))}
    if target not in known:
        raise CompilerError(f"compiler.target of {accelerator.name}: given {target}, expected {any_of(known)}")
    described = known[target].read_text(encoding="utf-8")
    shape = f"{topology.hosts * job.spec.hardware.slices}x1x{topology.devices_per_host}"
    return list(topologies.get_topology_desc(platform="cuda", target_config=described, topology=shape).devices)


def _target(accelerator: AcceleratorClass) -> str:
    """Return what the compiler calls the devices of a class."""
    if accelerator.spec.compiler is None:
        raise CompilerError(f"the class {accelerator.name} does not say what to compile for: it has no compiler.target")
    return accelerator.spec.compiler.target


@cache
def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False
