"""The image of a round: by the digest that its first pods were given, where there is one that any node could fetch."""

from typing import Any

import pytest
from tests.operator.building import asking, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.policies import image_pinning

DIGEST = "sha256:" + "a" * 64


def _image(asked: str, *image_ids: str, known: str = "", **fields: Any) -> str:
    job = asking(manifest(), agent=fields)
    job["spec"]["pod"]["image"] = asked
    pods = [pod(f"0-{host}", image_id=image_id) for host, image_id in enumerate(image_ids)]
    return image_pinning.image(seen(begun(image=known), *pods, made_of=snapshot(job)))


@pytest.mark.parametrize(
    ("asked", "image_id", "image"),
    [
        ("registry/team/trainer:v1", f"registry/team/trainer@{DIGEST}", f"registry/team/trainer@{DIGEST}"),
        ("registry:5000/trainer:v1", f"registry:5000/trainer@{DIGEST}", f"registry:5000/trainer@{DIGEST}"),
        ("registry:5000/trainer", f"registry:5000/trainer@{DIGEST}", f"registry:5000/trainer@{DIGEST}"),
        ("trainer", f"docker.io/library/trainer@{DIGEST}", f"trainer@{DIGEST}"),
        ("team/trainer:v1", f"docker-pullable://docker.io/team/trainer@{DIGEST}", f"team/trainer@{DIGEST}"),
        ("registry/trainer:v1", DIGEST, ""),  # loaded on the node: its own digest, which no registry has
        ("registry/trainer:v1", f"docker.io/library/import-2026@{DIGEST}", ""),
        ("registry/trainer:v1", f"mirror/registry/trainer@{DIGEST}", ""),
        ("registry/trainer:v1", "", ""),
        (f"registry/trainer@{DIGEST}", f"registry/trainer@{DIGEST}", ""),
        (f"registry/trainer:v1@{DIGEST}", f"registry/trainer@{DIGEST}", ""),
    ],
)
def test_what_a_node_says(asked: str, image_id: str, image: str) -> None:
    """A digest counts only of the repository that the job names; a job that names a digest needs no other."""
    assert _image(asked, image_id) == image


def test_the_first_that_is_known_counts() -> None:
    """And stays, whatever later pods say."""
    other = "sha256:" + "b" * 64

    assert _image("r/t:v1", "", f"r/t@{DIGEST}") == f"r/t@{DIGEST}"
    assert _image("r/t:v1", f"r/t@{other}", known=f"r/t@{DIGEST}") == f"r/t@{DIGEST}"


def test_an_image_that_is_never_fetched_is_known_by_its_name() -> None:
    """A node that was given it by hand may not know its digest."""
    assert _image("r/t:v1", f"r/t@{DIGEST}", imagePullPolicy="Never") == ""
