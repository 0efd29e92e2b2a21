"""Which layer refuses each wrong job: the table of docs/refusals.md, made by a real API server."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.client import Client, RefusedError
from tests.job.wrong_files import FIELDS, PODS, REST, RULES
from tests.operator.api.conftest import without_policy_of_jobs
from tests.operator.api.jobs import JOBS, create, job
from tests.operator.operating import MERGE

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.document import write_document
from shardwise.job.load import as_data
from shardwise.protocol.errors import JobError
from shardwise_operator.observe.snapshot import take_snapshot

TABLE = Path(__file__).parents[3] / "docs" / "refusals.md"

HEAD = """# Which layer refuses a wrong job

`kubectl apply` of each wrong job file of the tests, on a real API server.
Written by `tests/operator/api/test_layers.py`; the files are in `tests/job/wrong_files.py`.

| Layer | What it is |
|---|---|
| reader | our own reader of YAML, in `shardwise check` and `run`: kubectl takes `on` for true and `017` for 15 |
| kubectl | what it cannot send: JSON has no such number |
| schema | the CRD's types, bounds and closed lists of fields |
| CEL | the CRD's rules: durations above 0, and what may change of a job that is there |
| policy | the ValidatingAdmissionPolicies: fields against each other, and against the accelerator classes |
| condition | the operator, which checks every job with the models of `shardwise check`: it waits as Invalid |

Of a job that both policies refuse, the API server says what the one has to say that it comes to first, which changes
from time to time. Here it is the policy of the accelerator classes.

"""
CLASSES = {name: as_data(accelerator) for name, accelerator in BUILT_IN.items()}
MOUNTS = "pod.template.spec.containers.0.volumeMounts"
LAYERS = ("reader", "kubectl", "schema", "CEL", "policy", "condition")

# Kubernetes' own words for what a schema refuses; the rules' messages have none of them.
OF_SCHEMA = (
    " in body ",
    "Required value",
    "Unsupported value",
    "Duplicate value",
    "decoding",
    "unmarshal",
    "must be",
    "RFC",
    "API version",
)
# What stands around the words that matter.
AROUND = re.compile(
    r"^\d+: (.* cannot be handled as a TrainingJob: |.* is invalid: )?|, <nil>: .* to complete validation"
)


def layer(client: Client, override: str) -> tuple[str, str]:
    """The layer that refuses the job with an override, and its words."""
    try:
        manifest = job(override)
    except JobError as error:
        return "reader", error.problems[0].expected
    try:
        json.dumps(manifest, allow_nan=False)
    except ValueError:
        return "kubectl", client.refused("apply", "--filename", "-", stdin=write_document(manifest)).splitlines()[-1]
    try:
        create(client, manifest)
    except RefusedError as refusal:
        return _of(str(refusal))
    with pytest.raises(JobError) as refused:
        take_snapshot(manifest, CLASSES, image="trainer")
    return "condition", str(refused.value.problems[0])


def _by_a_policy(client: Client, override: str) -> tuple[str, str] | None:
    """The same of a job that only a policy may refuse; None where none does."""
    try:
        create(client, job(override))
    except RefusedError as refusal:
        return _of(str(refusal))
    return None


def _of(refusal: str) -> tuple[str, str]:
    """The layer that these words come from, and the words without what stands around them."""
    if "ValidatingAdmissionPolicy" in refusal:
        return "policy", refusal.partition("denied request: ")[2]
    name = "schema" if any(words in refusal for words in OF_SCHEMA) else "CEL"
    return name, AROUND.sub("", refusal)


@pytest.mark.golden
def test_every_wrong_job_is_refused_by_a_layer(shardwise_api: Client) -> None:
    """Each wrong file is refused where the table says, nearly all of them at apply."""
    counts: dict[str, int] = {}
    lines = []
    found = {override: layer(shardwise_api, override) for override, *_ in FIELDS + RULES + PODS}
    of_policies = [override for override, (name, _) in found.items() if name == "policy"]
    with without_policy_of_jobs(shardwise_api):
        found |= {override: told for override in of_policies if (told := _by_a_policy(shardwise_api, override))}
    for override in of_policies:  # which not every cluster has
        with pytest.raises(JobError):
            take_snapshot(job(override), CLASSES, image="trainer")
    for override, (name, words) in found.items():
        counts[name] = counts.get(name, 0) + 1
        lines.append(f"| `{shortened(override, 70)}` | {name} | `{shortened(words, 200)}` |")
    total = ", ".join(f"{counts[name]} {name}" for name in LAYERS)
    text = f"{HEAD}{len(lines)} files: {total}.\n\n| Change of a right job | Layer | What it says |\n|---|---|---|\n"
    text += "\n".join(lines) + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        TABLE.write_text(text)

    assert text == TABLE.read_text()


@pytest.mark.parametrize("fields", ["perToken: 8", "balance: 0", ""])
def test_a_preset_fills_what_is_left_out_of_its_experts(shardwise_api: Client, fields: str) -> None:
    """The API server takes what the models take."""
    create(shardwise_api, job(f"training.model={{preset: mixtral-8x7b, experts: {{{fields}}}}}"))


@pytest.mark.parametrize(
    "changes",
    [
        "model: {preset: tiny, seqLen: 512, attention: splash}, mesh: {context: 2}",
        "model: {preset: tiny, seqLen: 128, attention: splash}, mesh: {context: 1}",
        "model: {preset: tiny, attention: blockwise, attentionSoftcap: 30}, mesh: {context: 2}",
        "model: {preset: gemma3-1b, headSize: 128, attention: cudnn}, precision: {compute: bfloat16}",
        "model: {preset: gptj-6b, heads: 256, position: learned}",
        "model: {preset: gptj-6b, heads: 256, rotaryDim: 16}",
        "model: {preset: gptj-6b, heads: 64}",
        "model: {preset: pythia-410m, headSize: 17}",
    ],
)
def test_what_a_kernel_and_a_preset_take_is_no_break_of_a_rule(shardwise_api: Client, changes: str) -> None:
    """The rules on kernels and on turned values go no further than the models do."""
    accelerator = "tpu-v5p, topology: 2x2x1" if "splash" in changes else "gke-gpu-h100, topology: 1x8"
    manifest = job(f"hardware={{accelerator: {accelerator}}}", f"training={{{changes}, {REST}}}")
    take_snapshot(manifest, CLASSES, image="trainer")

    create(shardwise_api, manifest)


@pytest.mark.parametrize("name", ["a..b", "..a", "a..", "..."])
def test_two_dots_in_a_name_are_no_way_up(shardwise_api: Client, name: str) -> None:
    """A path is refused for a part that is `..`, as by the models, and not for a name that has it."""
    manifest = job(
        f"pod.directory=/runs/{name}",
        f"training.checkpoint.path=/runs/{name}/checkpoints",
        f"training.data.store=/runs/{name}",
        f"{MOUNTS}.1={{name: runs, mountPath: /{name}}}",
    )
    take_snapshot(manifest, CLASSES, image="trainer")

    create(shardwise_api, manifest)


@pytest.mark.parametrize("path", ["/runs/..", "/runs/../runs/a", "/../runs/a", "/runs/a..b/../../.."])
@pytest.mark.parametrize("field", ["pod.directory", "training.checkpoint.path", "training.data.store", MOUNTS])
def test_a_part_of_two_dots_is_refused_anywhere(shardwise_api: Client, field: str, path: str) -> None:
    """Below the mount or not, first or last."""
    manifest = job(f"{MOUNTS}.1={{name: runs, mountPath: {path}}}" if field == MOUNTS else f"{field}={path}")
    with pytest.raises(JobError):
        take_snapshot(manifest, CLASSES, image="trainer")

    with pytest.raises(RefusedError, match=r"expected .*folder"):
        create(shardwise_api, manifest)


def shortened(text: str, most: int) -> str:
    """A cell of the table, as code: a pattern is not to be read as Markdown."""
    text = text.encode("unicode_escape").decode().replace("\\n", " ").replace("|", "\\|").replace("`", "'")
    return text if len(text) <= most else f"{text[: most - 3]}..."


@pytest.mark.parametrize("least", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "training",
    [
        "mesh: {tensor: 1}, batch: {sequences: 96}",
        "mesh: {tensor: 1, replica: 12}, batch: {sequences: 96}",
        "mesh: {tensor: 1, pipeline: 2}, batch: {sequences: 96, microbatches: 4}",
        "mesh: {tensor: 1, pipeline: 2}, batch: {sequences: 144, microbatches: 2}",
        "mesh: {tensor: 2}, batch: {sequences: 36, microbatches: 3}",
        "mesh: {tensor: 1, replica: 4}, batch: {sequences: 96}",
        "mesh: {tensor: 1}, batch: {sequences: 97}",
    ],
)
def test_the_fewest_slices_are_judged_as_by_the_models(shardwise_api: Client, training: str, least: int) -> None:
    """Whether the batch divides over them is known at apply, and the refusal has the same words."""
    manifest = _on_six_slices(training)
    manifest["spec"]["recovery"] = {"minSlices": least}
    expected = said = ""
    try:
        take_snapshot(manifest, CLASSES, image="trainer")
    except JobError as error:
        expected = str(error.problems[0])
    try:
        create(shardwise_api, manifest)
    except RefusedError as refusal:
        said = str(refusal)

    assert ("recovery.minSlices" in expected) == ("recovery.minSlices" in said)
    assert "recovery.minSlices" not in expected or expected in said
    assert said == "" or expected != "", "the API server refuses no more than the models"


def test_the_fewest_slices_are_judged_when_they_change_too(shardwise_api: Client) -> None:
    """They may while the job is suspended, without a change of its hardware or its training."""
    manifest = _on_six_slices("mesh: {tensor: 1}, batch: {sequences: 96}")
    manifest["spec"]["suspend"] = True
    manifest["metadata"]["name"] = "fewest-slices"
    shardwise_api.request("POST", JOBS, manifest)
    url = f"{JOBS}/fewest-slices"
    try:
        patched = shardwise_api.request("PATCH", url, {"spec": {"recovery": {"minSlices": 4}}}, MERGE)
        assert patched["spec"]["recovery"]["minSlices"] == 4
        with pytest.raises(RefusedError, match=r"given 5, expected slices over which 96 sequences divide: 1, 2, 3, 4"):
            shardwise_api.request("PATCH", url, {"spec": {"recovery": {"minSlices": 5}}}, MERGE)
    finally:
        shardwise_api.request("DELETE", url)


def _on_six_slices(training: str) -> dict[str, Any]:
    """Return a job on six slices of four devices."""
    rest = REST.replace("batch: {sequences: 16}, ", "")
    hardware = "hardware={accelerator: cpu-sim, topology: 2x2, slices: 6}"
    return job(hardware, f"training={{model: {{preset: tiny}}, {rest}, {training}}}")
