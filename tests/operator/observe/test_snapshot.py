"""Which jobs may use a class: what the platform team says in it is checked when a round begins."""

from typing import Any

import pytest
from tests.operator.building import IMAGE, asking, classes, manifest

from shardwise.protocol.errors import JobError
from shardwise_operator.observe.snapshot import Snapshot, take_snapshot

TEAM = "registry.example/team"


def snapshot(
    allowed: dict[str, Any],
    image: str | None = None,
    namespace: str = "default",
    *,
    job: dict[str, Any] | None = None,
) -> Snapshot:
    """A job of an image in a namespace, whose class allows that much."""
    job = job or manifest()
    job["metadata"]["namespace"] = namespace
    if image:
        job["spec"]["pod"] = {**job["spec"]["pod"], "image": image}
    offered = classes()["cpu-sim"]
    return take_snapshot(job, {"cpu-sim": {**offered, "spec": {**offered["spec"], "allowed": allowed}}}, image=IMAGE)


@pytest.mark.parametrize(
    "image", [f"{TEAM}/trainer:1", f"{TEAM}:1", f"{TEAM}@sha256:{'0' * 64}", TEAM, "other.example/trainer:1"]
)
def test_a_job_may_name_what_the_class_allows(image: str) -> None:
    """An image as a whole, or all below a registry's folder."""
    assert snapshot({"images": [TEAM, "other.example/"]}, image).pod.image == image


@pytest.mark.parametrize("image", [f"{TEAM}2/trainer:1", "registry.example/other", f"evil.example/{TEAM}/trainer"])
def test_no_other_image_is_taken(image: str) -> None:
    """A name that only begins alike is another one; the refusal says what would do."""
    with pytest.raises(
        JobError, match=f'spec.pod.image: given "{image}", expected an image that cpu-sim allows: {TEAM}'
    ):
        snapshot({"images": [TEAM]}, image)


@pytest.mark.parametrize("image", ["registry.example:8443/evil/trainer", "registry.example:8443/evil/trainer:1"])
@pytest.mark.parametrize("allowed", ["registry.example", "registry.example/"])
def test_another_port_is_another_registry(allowed: str, image: str) -> None:
    """Whoever serves it need not be who serves the host's own: only a tag follows a colon in an image's name."""
    with pytest.raises(JobError, match=r"expected an image that cpu-sim allows: registry\.example"):
        snapshot({"images": [allowed]}, image)
    assert snapshot({"images": ["registry.example:8443"]}, image).pod.image == image


def test_no_other_image_is_taken_beside_the_trainer_s() -> None:
    """A side container runs on the same node, and as root where the class's pods do."""
    job = asking(manifest(), containers=[{"name": "side", "image": "elsewhere/side:1"}])

    with pytest.raises(JobError, match=r'containers.1.image: given "elsewhere/side:1", expected an image that cpu-sim'):
        snapshot({"images": [TEAM]}, f"{TEAM}/trainer", job=job)


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_a_job_has_no_container_of_the_class_s_name(group: str) -> None:
    """Kubernetes would take no pod of it: the refusal says so before the first one is made."""
    job = asking(manifest(hardware={"accelerator": "gke-gpu-h100", "topology": "1x8"}))
    job["spec"]["pod"]["template"]["spec"].setdefault(group, []).append({"name": "tcpx-daemon", "image": "own:1"})

    with pytest.raises(JobError, match=rf'{group}.\d.name: given "tcpx-daemon", expected another name'):
        take_snapshot(job, classes(), image=IMAGE)


def test_a_class_may_bring_the_only_image() -> None:
    """With an empty list a job names none, and gets the class's or the operator's."""
    assert snapshot({"images": []}).pod.image == IMAGE
    with pytest.raises(JobError, match=r"expected no image; left out"):
        snapshot({"images": []}, IMAGE)


def test_a_class_may_be_for_some_namespaces() -> None:
    """Jobs of the others are refused, and told for whom it is."""
    assert snapshot({"namespaces": ["default", "team"]}, namespace="team").pod.image == IMAGE
    with pytest.raises(JobError, match=r'given "cpu-sim" in the namespace "other", .*cpu-sim is for default, team'):
        snapshot({"namespaces": ["default", "team"]}, namespace="other")
    with pytest.raises(JobError, match="cpu-sim is for no namespace"):
        snapshot({"namespaces": []})
