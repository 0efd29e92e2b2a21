"""The section `program`: exactly one of it and `training`, and what is wrong in it is refused where it is written."""

import pytest
from tests.job.programs import WRONG, program_job
from tests.job.wrong_files import IN_CLUSTER

from shardwise.job.document import read_document
from shardwise.job.load import check, dump, loads
from shardwise.job.own_program import job_of_command, name_of_command
from shardwise.job.resolve import resolve
from shardwise.protocol.errors import JobError


@pytest.mark.parametrize(("override", "path", "fragments"), WRONG)
def test_wrong(override: str, path: str, fragments: list[str]) -> None:
    """One line of the message names the path, and what is expected."""
    with pytest.raises(JobError) as refused:
        check(program_job(override))
    lines = [line for line in str(refused.value).splitlines() if f"{path}: " in line]
    assert any(all(fragment in line for fragment in fragments) for line in lines), str(refused.value)


def test_neither_is_wrong() -> None:
    """A job without both is refused with what it may have."""
    document = read_document(IN_CLUSTER)
    del document.data["spec"]["training"]
    with pytest.raises(JobError, match="spec: given nothing, expected either training or program"):
        check(document)


def test_in_a_bucket() -> None:
    """Its checkpoints go there with its run directory, so nothing has to say where."""
    job = check(program_job("pod={directory: 's3://bucket/run', template: {}}"))
    assert job.spec.pod is not None
    assert job.spec.pod.directory == "s3://bucket/run"


def test_it_reads_back() -> None:
    """A job with a program is written as it is read, with every default."""
    job = resolve(check(program_job()))
    assert loads(dump(job)) == job
    assert job.spec.program is not None
    assert (job.spec.program.command, job.spec.program.args) == (("python", "my.py"), ("--fast",))
    assert (job.spec.num_steps, job.spec.checkpoint_path) == (None, None)


def test_training_is_found_under_its_name() -> None:
    """`training` is read and replaced under this name, whatever the field is called that may lack it."""
    job = check(read_document(IN_CLUSTER))
    longer = job.spec.training.model_copy(update={"steps": 7})
    assert job.spec.model_copy(update={"training": longer}).training.steps == 7


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "My_Script.v2.py", "a.txt"], "my-script-v2"),
        (["python", "-u", "train.py"], "train"),
        (["./run.sh"], "run"),
        (["./a.py", "x"], "a"),
        (["bin/My-Trainer", "--config", "b.yaml"], "my-trainer"),
        (["/opt/venv/bin/python3.11", "-X", "dev", "-W", "error", "a.py", "x"], "a"),
        (["python", "-mmy_package.train", "x"], "my-package-train"),
        (["python", "a.py", "-m", "x"], "a"),
        (["python"], "python"),
        (["bash", "-e", "run.sh", "a.py"], "run"),
        (["env", "-i", "A=1", "python", "-m", "a.b", "x"], "a-b"),
        (["uv", "run", "a.py", "x"], "a"),
        (["python", "-m", "my_package.train"], "my-package-train"),
        (["python", "-u", "-m", "my_package.distill", "-m", "x"], "my-package-distill"),
        (["python", "x" * 60 + ".py"], "x" * 40),
        (["+"], "program"),
    ],
)
def test_the_job_of_a_command(command: list[str], name: str) -> None:
    """A command's job has a name that a job may have, of its script, and simulated hosts.

    The script is the program itself or, of an interpreter, what that runs; its arguments name nothing.
    """
    assert name == name_of_command(command)
    job = job_of_command(command, hosts=2, devices=4)
    assert (job.metadata.name, job.spec.hardware.topology) == (name, "2x4")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torchrun --nproc_per_node 2 a.py", "a"),
        ("torchrun --standalone --nnodes 1 -m pkg.a", "pkg-a"),
        ("uv run --with rich a.py", "a"),
        ("env -u X python a.py b.py", "a"),
        ("env -u X serve.py", "serve"),
        ("accelerate launch --num_processes 2 a.py", "a"),
        ("nice -n 5 python a.py", "a"),
        ("timeout 3600 python -m pkg.a", "pkg-a"),
        ("conda run -n e python a.py", "a"),
        ("time python a.py", "a"),
        ("sudo -E python a.py", "a"),
        ("numactl --cpunodebind 0 bash a.sh", "a"),
        ("deepspeed --num_gpus 2 a.py", "a"),
        ("pipenv run python a.py", "a"),
        ("uvx --with rich a.py", "a"),
        ("python3.13t a.py", "a"),
        ("numactl -m 0 python train/ b.py", "train"),
        ("bash -o pipefail a.sh", "a"),
        ("python -mpkg.a b.py", "pkg-a"),
        ("my_program --config b.py", "my-program"),
    ],
)
def test_a_name_of_what_a_wrapper_runs(words: str, name: str) -> None:
    """A run is named after the script or module that runs, not after an option of what starts it."""
    assert name_of_command(words.split()) == name
