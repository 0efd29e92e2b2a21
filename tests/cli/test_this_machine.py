"""`shardwise run` on the GPUs of this machine, of which there are none: JAX is faked where it is asked for its devices.

Faked is one function, `shardwise.train.devices._visible`, from outside (`faked_devices/sitecustomize.py`): it says that
there are four GPUs, and hands out four simulated devices. Command, agents and trainers are those of a person, the job's
class is one of GPUs, and the steps are computed. So these tests say nothing of CUDA.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import QUICKSTART, Command
from tests.cli.running import Run
from tests.cli.shell import EVALUATED, Shell

from shardwise.protocol.contract import ExitCode, Phase

FAKED = str(Path(__file__).parent / "faked_devices")
STEPS = 40
CHANGES = (
    "training.mesh.tensor=2",
    f"training.steps={STEPS}",
    "training.checkpoint={everySteps: 4, keep: {last: 4}}",
    "recovery={restarts: {failure: 1, hang: 1}, backoff: 10ms, hangAfter: 20s}",
)
GPUS = "hardware={accelerator: gpu, topology: 1x4}"
FLAG = "--xla_dump_hlo_as_text=false"  # changes no bit
SIMULATED = "hardware={accelerator: cpu-sim, topology: 1x4}"


def _shell(factory: pytest.TempPathFactory, name: str, variables: Mapping[str, str]) -> Iterator[Shell]:
    with Shell(factory.mktemp(name), factory.getbasetemp() / "cache", CHANGES, variables) as made:
        yield made


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a folder on a machine with four GPUs; at the end nothing of the runs may remain."""
    # Four simulated devices want sixteen threads, as a job for them sets by itself.
    yield from _shell(tmp_path_factory, "gpus", {"PYTHONPATH": FAKED, "FAKED_DEVICES": "gpu 4", "NPROC": "16"})


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a folder on a machine without GPUs, in which nothing is faked."""
    yield from _shell(tmp_path_factory, "processor", {})


@pytest.fixture(scope="module")
def calm(gpus: Shell) -> Run:
    """Return the run of a job for four GPUs at its end; nothing disturbed it."""
    run = gpus.begin("calm", GPUS, EVALUATED)
    run.finish()
    return run


@pytest.fixture(scope="module")
def disturbed(gpus: Shell) -> Run:
    """Return the run of a job for four GPUs at its end: its first trainer was killed, its second one stopped."""
    run = gpus.begin("gpus", GPUS, EVALUATED)
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        trainer = run.until_phase(Phase.STEP, attempt=attempt).pid
        run.until_committed()
        os.kill(trainer, number)
    run.finish()
    return run


@pytest.fixture(scope="module")
def simulated(processor: Shell) -> Run:
    """Return the run of the same job on simulated devices at its end; nothing disturbed it."""
    run = processor.begin("simulated", SIMULATED, f"training.xlaFlags=[{FLAG}]")
    run.finish()
    return run


def test_a_job_for_gpus_ends_as_the_same_job_simulated(calm: Run, simulated: Run) -> None:
    """It is evaluated on its way, on as many devices."""
    assert {record["step"] for record in calm.records("evaluated")} == set(range(4, STEPS + 1, 4))
    assert calm.records("started")[0]["devices"] == 4
    assert simulated.summary["digest"] == calm.summary["digest"]


@pytest.mark.long  # undisturbed it is above; what is killed and hangs is in tests/hosts
def test_a_job_for_gpus_trains_on_those_of_this_machine(disturbed: Run, simulated: Run) -> None:
    """It goes on from its checkpoints after a kill and a hang, is evaluated, and ends as the same job simulated."""
    assert disturbed.summary["restarts"] == {"failure": 1, "hang": 1}
    assert len(disturbed.records("restored")) == 2
    assert {record["step"] for record in disturbed.records("evaluated")} == set(range(4, STEPS + 1, 4))
    assert disturbed.records("started")[0]["devices"] == 4
    assert simulated.summary["digest"] == disturbed.summary["digest"]


def test_another_number_of_gpus_is_refused(gpus: Shell) -> None:
    """The refusal names what the job asks for, what there is, and what to change; nothing is made."""
    run = gpus.begin("eight", "hardware={accelerator: gpu-h100, topology: 1x8}")
    assert run.wait() == ExitCode.DEVICE
    assert "the job asks for 8 GPU devices (gpu-h100 1x8); JAX finds 4 GPU devices (cpu) on this machine" in run.output
    assert "--set hardware.topology=1x4" in run.output
    assert not run.directory.exists()


def test_gpus_are_no_tpu(gpus: Shell) -> None:
    """A job for as many TPUs is refused too."""
    run = gpus.begin("tpu", "hardware={accelerator: tpu-v5e, topology: 2x2}")
    assert run.wait() == ExitCode.DEVICE
    assert "the job asks for 4 TPU devices (tpu-v5e 2x2); JAX finds 4 GPU devices (cpu) on this machine" in run.output


def test_a_machine_without_gpus_is_refused(process: Command, tmp_path: Path) -> None:
    """Where JAX finds a processor alone, which is not faked, it is said how the job runs and where."""
    words = ["run", str(QUICKSTART), "--dir", "runs/x", "--set=hardware={accelerator: gpu-h100, topology: 1x8}"]
    ended = process(*words, folder=tmp_path)
    assert ended.code == ExitCode.DEVICE
    assert "the job asks for 8 GPU devices (gpu-h100 1x8); JAX finds 1 CPU device (cpu)" in ended.error
    for way in ('pip install "shardwise[train,gpu]"', "kubectl apply", "hardware.accelerator=cpu-sim"):
        assert way in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("hardware", "fragments"),
    [
        ("{accelerator: gpu, topology: 2x4}", ["spec.hardware.topology: given 2x4", "1x1 to 1x16", "2 hosts"]),
        ("{accelerator: tpu-v6e, topology: 4x4}", ["spec.hardware.topology: given 4x4", "1x1, 2x2, 2x4", "4 hosts"]),
        ("{accelerator: gpu, topology: 1x4, slices: 2}", ["spec.hardware.slices: given 2", "one slice", "2 hosts"]),
    ],
)
def test_several_hosts_are_refused(hardware: str, fragments: list[str], command: Command, tmp_path: Path) -> None:
    """This machine is one host of real devices: more of them run in a cluster."""
    words = ["run", str(QUICKSTART), "--dir", str(tmp_path / "x"), f"--set=hardware={hardware}"]
    ended = command(*words)
    assert ended.code == ExitCode.BAD_INPUT
    for fragment in [*fragments, "kubectl apply -f job.yaml"]:
        assert fragment in ended.error


def test_a_run_on_gpus_is_read_without_them(calm: Run, processor: Shell) -> None:
    """On a machine without GPUs a run that had some is exported, and makes text; which devices make it is said."""
    exported = processor.call("export", str(calm.directory), "out/model.safetensors")
    assert (exported.returncode, exported.stderr) == (0, "")
    made = processor.call("generate", str(calm.directory), "--prompt", "1 times ", "--tokens", "8")
    assert (made.returncode, made.stdout.startswith("1 times ")) == (0, True)
    assert "4 GPU devices (gpu 1x4) are not on this machine: on the processor instead" in made.stderr


@pytest.mark.long  # a checkpoint knows nothing of devices; above it is read without them
def test_a_run_on_gpus_is_read_on_them(gpus: Shell, calm: Run) -> None:
    """Where the run's devices are, they make the text."""
    made = gpus.call("generate", calm.directory.name, "--prompt", "1 times ", "--tokens", "8")
    assert (made.returncode, made.stdout.startswith("1 times ")) == (0, True)
    assert "processor" not in made.stderr


def test_a_flag_that_xla_does_not_know(processor: Shell) -> None:
    """It ends the run as a wrong input does, with its name; nothing is tried again."""
    run = processor.begin("flag", SIMULATED, "training.xlaFlags=[--xla_no_such_flag=true]")
    assert run.wait() == ExitCode.BAD_INPUT
    assert "training.xlaFlags: given --xla_no_such_flag" in run.output
    assert (run.summary["cause"], run.summary["restarts"]) == ("badInput", {})


def test_flags_are_recorded(simulated: Run) -> None:
    """The first event of a start says what its programs were compiled with."""
    assert simulated.records("started")[0]["xlaFlags"] == [FLAG]
