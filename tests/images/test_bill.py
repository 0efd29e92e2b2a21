"""The bill of materials and the provenance of an image, without an engine."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

sys.path.append(str(Path(__file__).parents[2]))
from images.bill import Built, Content, bill, content, differences, locked, provenance  # the folder is no package

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
BUILT = Built(
    image="registry.example/shardwise-operator",
    digest=f"sha256:{'a' * 64}",
    version="1.0",
    revision="b" * 40,
    modified=False,
    engine="buildah",
    base=f"registry.example/python:3.11@sha256:{'c' * 64}",
    architecture="arm64",
    files={"requirements/operator.txt": "d" * 64},
)
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u13
Description: GNU C Library
 Package: no field, it is indented

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


@pytest.mark.parametrize("lock", ["operator", "train", "tpu", "gpu"])
def test_the_bill_has_the_distributions_of_the_lock(lock: str) -> None:
    """Each line `name==version` of a lock is one component of kind pypi, and there is no other."""
    text = (REQUIREMENTS / f"{lock}.txt").read_text()
    lines = [line.split(" ")[0].split("==") for line in text.splitlines() if "==" in line and line[0].isalnum()]

    made = json.loads(bill(BUILT, Content("3.11.9", locked(text), ())))

    urls = {each["purl"] for each in made["components"]}
    assert urls == {"pkg:generic/cpython@3.11.9"} | {f"pkg:pypi/{canonicalize_name(name)}@{pin}" for name, pin in lines}
    assert len(made["components"]) == 1 + len(lines) > 20


def test_what_is_found_in_an_image_is_its_content() -> None:
    """Names are normalised; a package of Debian counts that is installed, not one that was."""
    found = content({"python": "3.11.9", "distributions": {"PyYAML": "6.0", "a_b.c": "1"}, "debian": STATUS})

    assert found == Content("3.11.9", {"pyyaml": "6.0", "a-b-c": "1"}, [("libc6", "2.36-9+deb12u13", "amd64")])
    urls = [each["purl"] for each in json.loads(bill(BUILT, found))["components"]]
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64" in urls


def test_an_image_that_is_not_its_lock_is_told() -> None:
    """More, less and another version are each named."""
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "1"}) == [
        "a: 1 in place of none",
        "b: 2 in place of 3",
        "c: none in place of 1",
    ]


def test_the_same_image_has_the_same_bill() -> None:
    """No time, no random number: a bill can be compared with the one of another build."""
    found = content({"python": "3.11.9", "distributions": {"a": "1", "b": "2"}, "debian": STATUS})

    assert bill(BUILT, found) == bill(BUILT, found)


def test_the_provenance_names_the_image_and_its_sources() -> None:
    """Subject, base, commit and lock are there with their digests, as in-toto writes them."""
    made = provenance(BUILT, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))

    assert made["subject"] == [{"name": BUILT.image, "digest": {"sha256": "a" * 64}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["platform"] == "linux/arm64"
    assert {each["uri"]: each["digest"] for each in definition["resolvedDependencies"]} == {
        "git": {"gitCommit": "b" * 40},
        "docker:registry.example/python:3.11": {"sha256": "c" * 64},
        "git+file:requirements/operator.txt": {"sha256": "d" * 64},
    }
    assert made["predicate"]["runDetails"]["metadata"]["finishedOn"] == "2026-01-02T03:04:05Z"
