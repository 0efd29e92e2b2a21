"""shardwise.job.environment: what a training process finds in its environment before it imports JAX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.job.environment import apply, trainer_environment
from shardwise.job.load import load
from shardwise.job.own_program import job_of_command
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import CACHE_VARIABLE

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"


def job(num_devices: int) -> TrainingJob:
    """Return the quickstart job on so many devices."""
    return load(QUICKSTART, [f"hardware.topology=1x{num_devices}", "training.mesh.tensor=1"])


@pytest.mark.parametrize("num_devices", [1, 4, 8])
def test_devices_are_the_jobs(num_devices: int) -> None:
    """JAX sees as many simulated CPU devices as one host of the job has."""
    variables = trainer_environment(job(num_devices), {})
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert f"--xla_force_host_platform_device_count={num_devices}" in variables["XLA_FLAGS"].split()


@pytest.mark.parametrize(
    ("accelerator", "topology", "platforms"), [("tpu-v5e-4t", "2x4", "tpu,cpu"), ("gpu", "2x8", "cuda,cpu")]
)
def test_real_devices_are_not_simulated(accelerator: str, topology: str, platforms: str) -> None:
    """On real devices JAX takes those or fails; nothing is said of simulated ones."""
    hardware = [f"hardware.accelerator={accelerator}", f"hardware.topology={topology}", "training.mesh.tensor=1"]
    variables = trainer_environment(load(QUICKSTART, hardware), {"XLA_FLAGS": "--xla_dump_to=/x"})
    assert variables["JAX_PLATFORMS"] == platforms
    assert {"XLA_FLAGS", "NPROC", "GLIBC_TUNABLES"}.isdisjoint(variables)


def test_variables_of_a_class_are_set_where_no_pod_has_set_them() -> None:
    """On a machine of one's own the class's variables are the trainer's too; one that is there already stays."""
    job = load(QUICKSTART, ["hardware={accelerator: gpu-h100, topology: 1x8}"])
    assert trainer_environment(job, {})["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in trainer_environment(job, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"})


def test_every_simulated_device_has_threads_to_wait_in_several_collectives() -> None:
    """The pool of threads is four times the devices: also where the shell says otherwise, since bits depend on it."""
    assert trainer_environment(job(4), {"NPROC": "5"})["NPROC"] == "16"


def test_what_a_shell_has_set_for_other_programs_changes_no_bit() -> None:
    """Variables of JAX that change numbers, or the devices, are set to what a job without them has."""
    variables = trainer_environment(job(4), {})
    shell = {
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_ENABLE_X64": "true",
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        "JAX_THREEFRY_PARTITIONABLE": "false",
        "NPROC": "1",
    }
    assert trainer_environment(job(4), shell) == variables
    assert shell.keys() < variables.keys()


def test_flags_that_are_there_are_kept() -> None:
    """A person's XLA flags stay; another number of devices among them gives way to the job's."""
    given = {"XLA_FLAGS": "--xla_dump_to=/x --xla_force_host_platform_device_count=3 --xla_cpu_enable_fast_math=false"}
    flags = trainer_environment(job(4), given)["XLA_FLAGS"].split()
    assert flags[-3:] == [
        "--xla_dump_to=/x",
        "--xla_cpu_enable_fast_math=false",
        "--xla_force_host_platform_device_count=4",
    ]


def test_a_program_may_bring_another_jax() -> None:
    """It gets no flag that only our XLA knows, for XLA ends a process at one that it does not know."""
    program = job_of_command(["python", "my.py"], hosts=1, devices=2)
    assert trainer_environment(program, {})["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_simulated_devices_have_huge_pages(given: dict[str, str], expected: str) -> None:
    """What a step takes from malloc lies in huge pages; a person's tunables stay, and win."""
    assert trainer_environment(job(4), given)["GLIBC_TUNABLES"] == expected


def test_malloc_gives_huge_pages() -> None:
    """The C library understands what it is told: where the kernel waits to be asked, it asks, and not without."""
    waits = "[madvise]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    program = (
        "import ctypes, re; libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p;"
        "at = libc.malloc(ctypes.c_size_t(64 << 20));"
        "areas = re.split(r'(?m)^(?=[0-9a-f]+-[0-9a-f]+ )', open('/proc/self/smaps').read())[1:];"
        "ends = [[int(x, 16) for x in area.split()[0].split('-')] for area in areas];"
        "print([' hg' in area for area, (low, high) in zip(areas, ends) if low <= at < high])"
    )
    marked = []
    for tunables in ("", trainer_environment(job(4), {})["GLIBC_TUNABLES"]):
        environment = {**os.environ, "GLIBC_TUNABLES": tunables}
        marked.append(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True))
    assert marked == ["[False]\n", f"[{waits}]\n"]


def test_programs_are_kept_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every compiled program is kept below the cache folder, however quickly it compiled."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    variables = trainer_environment(job(8), {})
    assert variables["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "executables")
    assert variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] == "-1"


def test_a_persons_choice_stays() -> None:
    """A folder for compiled programs and a log level that are set already are left as they are."""
    given = {"JAX_COMPILATION_CACHE_DIR": "/elsewhere", "TF_CPP_MIN_LOG_LEVEL": "0"}
    variables = trainer_environment(job(8), given)
    assert {name: variables[name] for name in given} == given


def test_sigterm_stays_ours() -> None:
    """JAX's preemption service, which would take SIGTERM from the run's own handler, is off."""
    assert trainer_environment(job(8), {})["JAX_ENABLE_PREEMPTION_SERVICE"] == "false"


def test_apply_sets_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from the job is in this process's environment afterwards; the rest is as it was."""
    environment = {"XLA_FLAGS": "--xla_dump_to=/x", "HOME": "/home"}
    monkeypatch.setattr(os, "environ", environment)
    expected = environment | trainer_environment(job(2), environment)
    apply(job(2))
    assert environment == expected
