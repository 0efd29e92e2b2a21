"""The environment of a process that trains: which devices JAX sees, and where compiled programs are kept.

JAX reads these variables when it is imported, so they are set before; this module imports nothing of JAX.
"""

import os
from collections.abc import Mapping

from shardwise.job.accelerators import accelerator_of
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import num_devices, topology_of
from shardwise.protocol.cache import JAX_CACHE_VARIABLE, executables_directory

_DEVICE_COUNT = "--xla_force_host_platform_device_count"
# Simulated devices are threads that meet in every sum. XLA ends the process when one is 40 seconds late, which a busy
# machine or a laptop that slept can be.
COLLECTIVE_TIMEOUT_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    "--xla_cpu_collective_call_terminate_timeout_seconds=1800",
)
"""Flags of our JAX's XLA. Another release may not know them, and ends the process then."""
# One simulated device can wait in several collectives at once, each of which holds a thread of a pool that by default
# has one thread a device: the device that all wait for then finds none, and the program hangs for ever. How many
# there are also decides how a product is divided, and so its bits: the job's number holds, whatever the shell has set.
_THREADS_PER_DEVICE = 4
# A step on a CPU takes hundreds of MiB of temporaries from malloc and gives them back. In pages of 4 KiB each step maps
# them again by 100,000 faults; huge ones, if the kernel gives them on request, make it about a tenth quicker.
_MALLOC_PAGES = "glibc.malloc.hugetlb"
HUGE_PAGES = f"{_MALLOC_PAGES}=1"
# A job's bits are the job's: what a shell has set for other programs must not change them.
_SAME_BITS = {
    "JAX_ENABLE_X64": "false",
    "JAX_DEFAULT_PRNG_IMPL": "threefry2x32",
    "JAX_THREEFRY_PARTITIONABLE": "true",
}
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}


def trainer_environment(job: TrainingJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to `environment` for one host of this job.

    XLA flags and tunables of the C library that are already there are kept, and win over ours; the number of simulated
    devices, and of their threads, is the job's. Variables of the class that are already there are kept too: in a pod
    all of them are, with the job's own values if it has some.
    """
    accelerator = accelerator_of(job.spec.hardware).spec
    platform = accelerator.platform
    given = environment.get(JAX_CACHE_VARIABLE)
    return {
        **{variable.name: variable.value for variable in accelerator.env if variable.name not in environment},
        # The processor comes last: it is there for what a program keeps in the host's memory.
        "JAX_PLATFORMS": _PLATFORMS[platform],
        **(_simulated(job, environment) if platform == "cpu" else {}),
        JAX_CACHE_VARIABLE: str(executables_directory(environment)) if given is None else given,
        # By default JAX keeps only what took a second to compile.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # The service takes SIGTERM away from Python's handlers.
        "JAX_ENABLE_PREEMPTION_SERVICE": "false",
        **_SAME_BITS,
        "TF_CPP_MIN_LOG_LEVEL": environment.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


def plan_environment(job: TrainingJob) -> dict[str, str]:
    """Return the variables of a process that compiles for the job's hardware and runs nothing on it."""
    number = num_devices(job.spec.hardware)
    return {
        # Compilers are asked for by name. A GPU's plugin would look for a driver, and a TPU's for a cloud's metadata.
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # or a second plan at the same time fails on libtpu's lock file
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Without a compiler for the hardware as many simulated devices stand in.
        "JAX_NUM_CPU_DEVICES": str(number),
        "XLA_FLAGS": f"{_DEVICE_COUNT}={number}",
        **_SAME_BITS,
    }


def _simulated(job: TrainingJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of simulated devices."""
    topology = topology_of(job.spec.hardware)
    assert topology is not None, "the rules have passed the topology"
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_COUNT)]
    # A program brings its own JAX; `shardwise.init` adds them to ours.
    waits = () if job.spec.program else COLLECTIVE_TIMEOUT_FLAGS
    tunables = [one for one in environment.get("GLIBC_TUNABLES", "").split(":") if one]
    if not any(one.startswith(_MALLOC_PAGES) for one in tunables):
        tunables.append(HUGE_PAGES)
    return {
        "GLIBC_TUNABLES": ":".join(tunables),
        "NPROC": str(_THREADS_PER_DEVICE * topology.devices_per_host),
        "JAX_NUM_CPU_DEVICES": str(topology.devices_per_host),  # wins over XLA's flag
        "XLA_FLAGS": " ".join([*waits, *flags, f"{_DEVICE_COUNT}={topology.devices_per_host}"]),
    }


def apply(job: TrainingJob) -> None:
    """Set the variables for this process."""
    os.environ.update(trainer_environment(job, os.environ))
