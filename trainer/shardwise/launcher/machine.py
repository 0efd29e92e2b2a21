"""What JAX finds on this machine, and whether a job can run on it.

JAX is asked in a process of its own, which has ended when the first trainer starts: a process that has looked for GPUs
or TPUs holds them, and the trainers are to have them.
"""

import json
import subprocess
from dataclasses import dataclass

from shardwise.job.accelerators import accelerator_of
from shardwise.job.device_words import hardware_words, one_host_words
from shardwise.job.environment import trainer_environment
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.accelerator import AcceleratorClass
from shardwise.job.topology import num_devices, num_hosts
from shardwise.launcher.leader.devices import device_variables
from shardwise.launcher.system.processes import clean_environment, own_module
from shardwise.protocol.errors import DeviceError, JobError, Problem

ADDRESS = "127.0.0.1"
"""The address of every host, as this machine is all of them."""
_ASK = own_module("shardwise.train.devices")
_ANSWER_SECONDS = 180.0  # one machine of a larger TPU slice waits for the others
_LAST_LINES = 5
_LIBRARIES = {"gpu": 'pip install "shardwise[train,gpu]"', "tpu": 'pip install "shardwise[train,tpu]"'}


@dataclass(frozen=True, kw_only=True)
class Found:
    """The devices that JAX takes here by itself."""

    platform: str
    number: int
    message: str
    complaints: str
    """What JAX wrote to standard error, such as why it takes no GPU; most often nothing."""

    def are_those_of(self, job: TrainingJob) -> bool:
        """Return whether these are the platform and the number of devices that a job asks for."""
        hardware = job.spec.hardware
        return (self.platform, self.number) == (accelerator_of(hardware).spec.platform, num_devices(hardware))


def refuse_elsewhere(job: TrainingJob) -> None:
    """Refuse a job that cannot run on this machine. One for `cpu-sim` always can, with any number of hosts.

    Raises:
        JobError: it has several hosts of real devices.
        DeviceError: JAX finds other devices here, or fewer, or more.

    """
    hardware = job.spec.hardware
    accelerator = accelerator_of(hardware)
    if accelerator.spec.platform == "cpu":
        return
    if num_hosts(hardware) > 1:
        raise JobError([_several_hosts(job, accelerator)])
    found = look(job)
    if not found.are_those_of(job):
        complaints = f"\n{found.complaints}" if found.complaints else ""
        raise DeviceError(
            f"the job asks for {hardware_words(hardware)}; JAX finds {found.message} on this machine. "
            f"{_what_to_do(accelerator, found)}{complaints}"
        )


def look(job: TrainingJob) -> Found:
    """Ask JAX in a process of its own, with a trainer's variables; DeviceError if there is no answer."""
    try:
        asked = subprocess.run(  # noqa: S603  our own module
            _ASK, env=_environment(job), capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"JAX did not say within {_ANSWER_SECONDS:.0f} s which devices this machine has. Look whether another "
            "process holds them, or whether they are a part of a larger TPU slice, which `shardwise run` cannot use"
        ) from None
    complaints = "\n".join(asked.stderr.strip().splitlines()[-_LAST_LINES:])
    if asked.returncode:
        raise DeviceError(f"JAX finds no devices on this machine:\n{complaints}")
    found = json.loads(asked.stdout)
    return Found(platform=found["platform"], number=found["number"], message=found["words"], complaints=complaints)


def _environment(job: TrainingJob) -> dict[str, str]:
    environment = clean_environment()
    platform = accelerator_of(job.spec.hardware).spec.platform
    return (
        environment
        | trainer_environment(job, environment)
        | device_variables(platform, [ADDRESS], num_slices=1, rank=0)
        # Without a platform JAX takes the best that it finds, so that an error can name what there is.
        | {"JAX_PLATFORMS": "", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    )


def _several_hosts(job: TrainingJob, accelerator: AcceleratorClass) -> Problem:
    hardware = job.spec.hardware
    one_host = one_host_words(accelerator)
    sliced = hardware.slices > 1
    return Problem(
        path="spec.hardware.slices" if sliced else "spec.hardware.topology",
        given=str(hardware.slices) if sliced else hardware.topology,
        expected=f"one host of {hardware.accelerator} for a run on this machine"
        + (f": one slice of {one_host}" if one_host else ", and the class has no topology of one host"),
        hint=f"these are {num_hosts(hardware)} hosts, which run in a cluster that has them: kubectl apply -f job.yaml",
    )


def _what_to_do(accelerator: AcceleratorClass, found: Found) -> str:
    platform = accelerator.spec.platform
    if found.platform != platform:
        return (
            f"Where it has {platform.upper()}s, install what JAX needs for them ({_LIBRARIES[platform]}) and the "
            "driver; elsewhere the job runs in a cluster (kubectl apply -f job.yaml), or simulated "
            "(--set hardware.accelerator=cpu-sim, with a topology of hosts x devices)"
        )
    if accelerator.spec.hosts is None:
        return f"Ask for what there is with hardware.topology, one of {one_host_words(accelerator)}"
    return (
        f"Ask for what there is (--set hardware.topology=1x{found.number}), or look why JAX sees no other number "
        "(CUDA_VISIBLE_DEVICES, the driver)"
    )
