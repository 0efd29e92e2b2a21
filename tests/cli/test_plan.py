"""`shardwise plan` as a person calls it: its verdict, its search, and the job file that it writes."""

import io
import json
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import COMMAND, person
from tests.cli.test_plan_verdict import CLASS
from tests.long import all_but

from shardwise.job.accelerators import CLASS_VARIABLE
from shardwise.job.document import parse_document, write_document
from shardwise.plan.result import Plan
from shardwise.plan.show import show
from shardwise.protocol.contract import ExitCode

ROOT = Path(__file__).parents[2]
JOB = """\
# A job whose layout is not the best.
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {name: searched}
spec:
  hardware: {accelerator: cramped, topology: 1x4}
  training:
    model: {layers: 2, heads: 4, embed: 64, seqLen: 64, remat: full}   # computed again
    data:
      train:
        - {name: text, paths: ["a.txt"], weight: 2}
        - {name: more, paths: ['b.txt']}
      tokenizer: byte
    mesh:
      tensor: 4        # more ways than it needs
    batch: {sequences: 16, microbatches: 4}
    optimizer: {name: adamw, learningRate: 3e-4}
    steps: 10
"""

TOO_LARGE = """
from unittest.mock import patch
from shardwise.cli.app import main
from shardwise.plan import search
from shardwise.plan.result import Bound, Plan

def too_large(job):
    ways = job.spec.training.mesh.tensor
    times = {"compute_seconds": ways, "memory_seconds": 0, "asynchronous_seconds": {}, "synchronous_seconds": {}}
    return Plan(
        job="searched", accelerator="cramped", topology="1x4", slices=1, devices=4, mesh={}, attention="plain",
        remat="full", microbatches=1, xla_flags=[], compiled_for="hardware", fits=False, needed_bytes=2**34 // ways,
        limit_bytes=2**30, bound=Bound(seconds=ways, mfu=0.5, binds="compute", **times),
    )

with patch.object(search, "plan", too_large):
    main()
"""
"""A compiler that has no layout fit: the more ways tensor has, the less memory it needs, and the longer it takes."""

FEW = """
from unittest.mock import patch
from shardwise.cli.app import main
from shardwise.plan import search

with patch.object(search, "MOST_COMPILED", 4):
    main()
"""
"""A search that compiles four layouts at most, and not eight."""


def _plan(
    folder: Path, *words: str, memory: str = "1Gi", job: str = "job.yaml", program: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    figures = {"deviceMemory": memory, "memoryBandwidth": "10G"}
    (folder / "class.yaml").write_text(write_document({**CLASS, "spec": {**CLASS["spec"], **figures}}))  # type: ignore[dict-item]
    (folder / "job.yaml").write_text(JOB)
    environment = person(folder) | {CLASS_VARIABLE: str(folder / "class.yaml"), "COLUMNS": "110"}
    command = [*program, "plan", job, *words]
    return subprocess.run(command, cwd=folder, env=environment, input=JOB, capture_output=True, text=True, check=False)


def test_a_search_ranks_layouts_and_writes_the_best(tmp_path: Path) -> None:
    """A few are compiled, the job's own among them; the best's fields change in the file, and nothing else."""
    done = _plan(tmp_path, "--search", "--write", "--json", program=[sys.executable, "-c", FEW])

    assert done.returncode == ExitCode.OK, done.stderr
    said = ["loading JAX and the compilers", "looking for layouts that fit the devices"]
    assert done.stderr.splitlines()[:2] == said
    layouts = json.loads(done.stdout)["layouts"]
    assert 1 < len(layouts) == done.stderr.count("compiling") <= 4
    seconds = [layout["seconds"] for layout in layouts]
    assert 0 < seconds[0] < seconds[-1]
    assert seconds == sorted(seconds)
    assert [layout["changes"]["training.mesh.tensor"] for layout in layouts if layout["isOwn"]] == [4]
    best = layouts[0]["changes"]
    expected = (
        JOB.replace("tensor: 4", f"tensor: {best['training.mesh.tensor']}")
        .replace("microbatches: 4", f"microbatches: {best['training.batch.microbatches']}")
        .replace("remat: full", f"remat: {best['training.model.remat']}")
    )
    assert expected != JOB
    assert (tmp_path / "job.yaml").read_text() == expected


def test_a_layout_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    """Arithmetic may be wrong: where the compiler finds all too large, the least comes first, and the file stays."""
    done = _plan(tmp_path, "--search", "--write", "--json", program=[sys.executable, "-c", TOO_LARGE])

    assert done.returncode == ExitCode.OUT_OF_MEMORY, done.stderr
    layouts = json.loads(done.stdout)["layouts"]
    needed = [layout["neededBytes"] for layout in layouts]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]
    assert (tmp_path / "job.yaml").read_text() == JOB
    assert done.stderr.endswith("job.yaml stays as it is: no layout fits\n")


def test_a_job_file_stays_the_file_that_it_was(tmp_path: Path) -> None:
    """A link stays a link; the file that it leads to keeps its permissions, its line ends and its mark of UTF-8."""
    file, link = tmp_path / "files" / "kept.yaml", tmp_path / "link.yaml"
    file.parent.mkdir()
    file.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    file.chmod(0o600)
    link.symlink_to(file)
    fits = TOO_LARGE.replace("fits=False", "fits=True")
    done = _plan(tmp_path, "--search", "--write", "--json", job=link.name, program=[sys.executable, "-c", fits])

    assert done.returncode == ExitCode.OK, done.stderr
    assert link.readlink() == file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    assert written.startswith(b"\xef\xbb\xbf# A job")
    assert written.count(b"\n") == written.count(b"\r\n") == JOB.count("\n")
    assert b"tensor: 1 " in written
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_job_file_of_json_stays_json(tmp_path: Path) -> None:
    """The changes are in it, and every program that reads JSON reads it."""
    data = parse_document(JOB, source="job.yaml").data
    file = tmp_path / "job.json"
    file.write_text(json.dumps(data, indent="\t") + "\n")
    fits = TOO_LARGE.replace("fits=False", "fits=True")
    done = _plan(tmp_path, "--search", "--write", "--json", job=file.name, program=[sys.executable, "-c", fits])

    assert done.returncode == ExitCode.OK, done.stderr
    training = data["spec"]["training"]
    for path, value in json.loads(done.stdout)["layouts"][0]["changes"].items():
        _, group, field = path.split(".")
        if field in training[group] or value != 1:
            training[group][field] = value
    assert json.loads(file.read_text()) == data
    assert file.read_text() == json.dumps(data, indent="\t") + "\n"


@pytest.mark.parametrize(
    "words", [("--summary", "missing/it"), ("--pictures", "job.yaml/it")], ids=lambda words: words[0]
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(words: tuple[str, str], tmp_path: Path) -> None:
    """Nothing is compiled for a result that cannot be left."""
    done = _plan(tmp_path, *words)

    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert re.match(rf"error: {words[1]}: cannot be written \(.*directory\)", done.stderr)


def test_a_job_file_that_cannot_be_replaced_is_said_before_the_work(tmp_path: Path) -> None:
    """A job that is read from standard input has no place for what --write changes."""
    done = _plan(tmp_path, "--search", "--write", job="/proc/self/fd/0")

    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr.startswith("error: /proc/self/fd/0: cannot be written (")


def test_the_figures_belong_together(tmp_path: Path) -> None:
    """Memory's kinds sum to its total, and weights to its parameters; a recomputed layer is done twice."""
    plan = json.loads(_plan(tmp_path, "--json").stdout)

    memory = plan["memory"]
    kinds = ("parameters", "optimizer", "gradients", "activations", "temporaries", "batch", "program")
    assert sum(memory[kind] for kind in kinds) == memory["total"] == plan["neededBytes"]
    assert memory["limit"] == plan["limitBytes"] == 2**30
    assert sum(weight["partBytes"] for weight in plan["weights"]) == memory["parameters"]
    assert all(weight["axes"].keys() >= weight["split"].keys() for weight in plan["weights"])
    assert 1.2 < plan["flops"]["program"] / plan["flops"]["model"] < 1.5
    assert plan["wire"]["tensor"]["bytes"] >= 0.99 * plan["wire"]["tensor"]["least"] > 0


def test_what_makes_completions_must_fit_too(tmp_path: Path) -> None:
    """A job that learns from rewards has their programs compiled; a long completion takes more than the step does."""
    asked = "--set=training.data={tokenizer: byte, train: [{name: asked, paths: [a.jsonl], prompts: true}]}"
    learning = "--set=training.reinforcement={samples: 4, maxTokens: 900, reward: {pattern: '(a)'}}"
    words = [asked, learning, "--set=training.model.seqLen=1024", "--set=training.batch={sequences: 4}"]
    plan = json.loads(_plan(tmp_path, "--json", *words, "--set=training.mesh={fsdp: false}").stdout)
    made, memory = plan["completions"], plan["memory"]

    assert (made["rows"], made["gathers"]) == (4, False)
    assert made["caches"] == 2 * 2 * 1024 * 64 * 4  # keys and values of two layers, a row a device
    assert made["total"] >= memory["parameters"] + memory["optimizer"] + made["weights"] + made["caches"]
    assert plan["neededBytes"] == max(memory["total"], made["total"])
    assert made["seconds"] == pytest.approx(900 * (made["weights"] + made["caches"]) / 10e9)
    said = io.StringIO()
    show(Plan.model_validate(plan), Console(file=said, width=200))
    assert "completions before each step: 4 at once, with" in said.getvalue()
    assert json.loads(_plan(tmp_path, "--json").stdout)["completions"] is None


@pytest.mark.parametrize("fsdp", all_but(["true"], ["false", "true"]))
def test_data_moves_no_less_than_the_least(fsdp: str, tmp_path: Path) -> None:
    """Also where tensor splits a table of positions, of whose gradient a device has its own part alone."""
    words = [f"--set=training.mesh={{tensor: 2, fsdp: {fsdp}}}", "--set=training.batch.microbatches=1"]
    data = json.loads(_plan(tmp_path, "--json", *words).stdout)["wire"]["data"]

    assert data["bytes"] >= data["least"] > 0


@pytest.mark.long  # tests/plan has pipelines, compiled and estimated
def test_a_pipeline_says_how_long_its_stages_idle(tmp_path: Path) -> None:
    """By the schedule; the least time of a step has it, and the bytes that stages hand on are an axis of their own."""
    words = ["--set=training.mesh={pipeline: 2}", "--set=training.model.layers=8"]
    split, whole = (
        json.loads(_plan(tmp_path, "--json", *words[at:], "--set=training.mesh.tensor=1").stdout) for at in (0, 1)
    )

    assert split["mesh"]["pipeline"] == 2
    assert (split["bubble"]["ticks"], split["bubble"]["idleShare"]) == (5, 0.2)
    assert whole["bubble"] is None
    assert 1.15 < split["bound"]["computeSeconds"] / whole["bound"]["computeSeconds"] <= 1 / 0.8
    assert split["wire"]["pipeline"]["bytes"] >= split["wire"]["pipeline"]["least"] > 0
    assert split["memory"]["activations"] > 0
    said = io.StringIO()
    show(Plan.model_validate(split), Console(file=said, width=110))
    assert "stages of the pipeline idle 20.0% of 5 ticks" in said.getvalue()
    assert "x pipeline 2 x" in said.getvalue()


def test_a_job_that_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    """The exit code is that of a device without memory."""
    done = _plan(tmp_path, memory="512Ki")

    assert done.returncode == ExitCode.OUT_OF_MEMORY
    assert re.search(r"does not fit: needs .* a device, .* more than the 0\.50 MiB that there are", done.stdout)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--write",), "give --search too"),
        (("--search", "--set", "hardware={accelerator: cpu-sim, topology: 1x4}"), "layouts cannot be ranked"),
        (("--search", "--set", "hardware={accelerator: tpu-v5e, topology: 2x2}"), "shardwise[plan-tpu]"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    """Nothing to write without a search; no ranks without figures, or without the compiler."""
    done = _plan(tmp_path, *words)

    assert done.returncode == ExitCode.USAGE
    assert reason in done.stderr
    assert (tmp_path / "job.yaml").read_text() == JOB


@pytest.mark.long
def test_the_tours_show_these_plans(tmp_path: Path) -> None:
    """The plan that docs/tour/README.md shows is printed so, and the table below it has the figures of the changes."""
    page = (ROOT / "docs" / "tour" / "README.md").read_text(encoding="utf-8")
    shown = page[page.index("$ shardwise plan") :].partition("```")[0].splitlines()
    words, environment = shown[0].split()[2:], person(tmp_path) | {"COLUMNS": "117"}
    command = [*COMMAND, *words]
    plain = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    lines = [" ".join(line.replace("─", "").split()) for line in (*shown[1:], *plain.splitlines())]

    assert [line for line in lines[: len(shown) - 1] if line not in lines[len(shown) - 1 :]] == []
    rows = re.findall(
        r"^\| (none|`(--set \S+)`).*?\| (\S+) MiB \| (?:(\S+) MiB)? *\| (?:(\S+) MiB)? *\|$", page, re.MULTILINE
    )
    assert len(rows) == 4
    for _, change, *figures in rows:
        done = subprocess.run(
            [*command, *change.split(), "--json"], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        plan = json.loads(done.stdout)
        moved = [plan["wire"].get(axis, {}).get("bytes") for axis in ("data", "tensor")]
        held = [plan["memory"]["parameters"], *moved]
        assert [f"{each / 2**20:.2f}" if each else "" for each in held] == figures
