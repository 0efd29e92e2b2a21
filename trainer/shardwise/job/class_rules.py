"""The rules across the fields of an accelerator class: topologies of whole hosts, and pods that keep to its level."""

import math
import re
from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.fields import values_at
from shardwise.job.flags import refusals, repeated
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.protocol.errors import Problem
from shardwise.protocol.pods import AGENT
from shardwise.protocol.text import any_of

PLACEHOLDERS = ("topology", "machine")
SHARE_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# What plans and runs divide by.
FIGURES = (
    "deviceMemory",
    "memoryBandwidth",
    "peakFlops.bfloat16",
    "peakFlops.float32",
    "interconnect.bandwidth",
    "hosts.networkBandwidth",
    "machines.*.networkBandwidth",
)


def class_problems(accelerator: AcceleratorClass) -> list[Problem]:
    """Return every problem of a class, in the order of the rules."""
    return [problem for rule in _RULES for problem in rule(accelerator)]


def _topologies_are_of_one_kind(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require either grids of chips or a number of hosts."""
    spec = accelerator.spec
    if bool(spec.machines) == (spec.hosts is not None):
        yield Problem(
            path="spec",
            given="both machines and hosts" if spec.hosts else "neither machines nor hosts",
            expected="machines with their grids of chips, or hosts with their devices",
        )


def _grids_are_whole_machines(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require that the chips of a grid fill whole machines, and no two machines offer the same grid."""
    seen: dict[str, str] = {}
    for index, machine in enumerate(accelerator.spec.machines):
        for place, grid in enumerate(machine.topologies):
            path = f"spec.machines.{index}.topologies.{place}"
            chips = math.prod(int(side) for side in grid.split("x"))
            if chips % machine.chips:
                yield wrong(path, grid, f"whole machines of {machine.chips} chips, not {chips} chips")
            if grid in seen:
                yield wrong(path, grid, f"each grid once, and {seen[grid]} has it")
            seen[grid] = machine.name


def _host_range_is_a_range(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require that the fewest devices of a host are no more than the most."""
    hosts = accelerator.spec.hosts
    if hosts is not None and hosts.min_devices > hosts.max_devices:
        yield wrong("spec.hosts.minDevices", hosts.min_devices, f"at most {hosts.max_devices}")


def _the_machine_is_for_privileged_pods(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require privileged pods for folders of the machine and capabilities of its network, as Kubernetes does."""
    spec = accelerator.spec
    if (spec.host_paths or spec.sidecars) and spec.pod_security != "privileged":
        yield wrong("spec.podSecurity", spec.pod_security, "privileged, which hostPaths and sidecars need")


def _sidecars_have_names_of_their_own(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require names of their own for sidecars: Kubernetes takes each once in a pod, and one is the trainer's."""
    seen = {AGENT}
    for index, sidecar in enumerate(accelerator.spec.sidecars):
        if sidecar.name in seen:
            yield wrong(f"spec.sidecars.{index}.name", sidecar.name, f"a name apart from {any_of(sorted(seen))}")
        seen.add(sidecar.name)


def _placeholders_are_known(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Refuse placeholders but {topology} and {machine}, the latter without a grid."""
    known = PLACEHOLDERS if accelerator.spec.machines else PLACEHOLDERS[:1]
    for key, value in accelerator.spec.node_selector.items():
        if not set(re.findall(r"{(.*?)}", value)) <= set(known):
            expected = f"no placeholder but {' and '.join(f'{{{name}}}' for name in known)}"
            yield wrong(f"spec.nodeSelector.{key}", value, expected)


def _flags_are_safe(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require each option once, and none that breaks a promise or is known to give wrong numbers with another."""
    path, compiler = "spec.compiler.flags", accelerator.spec.compiler
    flags = [one.flag for one in compiler.flags] if compiler else []
    for flag, reason in refusals(flags):
        yield wrong(path, flag, "options without it", reason)
    for name in repeated(flags):
        yield Problem(path=path, given=f"{name} more than once", expected="each option once")


def _figures_are_above_zero(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require figures above zero of what a device can do: plans and runs divide by them."""
    for field in FIGURES:
        for path, figure in values_at(accelerator.spec, field):
            if figure is not None and not figure.value:
                yield wrong(f"spec.{path}", str(figure), "a quantity above 0")


def _share_of_memory_is_a_share(accelerator: AcceleratorClass) -> Iterator[Problem]:
    """Require a share of a GPU's memory for what JAX reserves: plans multiply by it."""
    for place, one in enumerate(accelerator.spec.env):
        if one.name == SHARE_VARIABLE and one.value and not _is_share(one.value):
            yield wrong(f"spec.env.{place}.value", one.value, "a number above 0, up to 1")


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


_RULES = (
    _topologies_are_of_one_kind,
    _grids_are_whole_machines,
    _host_range_is_a_range,
    _the_machine_is_for_privileged_pods,
    _sidecars_have_names_of_their_own,
    _placeholders_are_known,
    _flags_are_safe,
    _figures_are_above_zero,
    _share_of_memory_is_a_share,
)
