"""A Workload as Kueue writes it, read: what it says, what its pods get, and where each goes."""

from typing import Any

import pytest

from shardwise_operator.observe.workload import Admission, kept_of_workload, read_admission, read_workload

_SINCE = "2026-11-25T03:00:00Z"
_FLAVORS: dict[str, Any] = {
    "spot": {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}},
    "plain": {},
}


def _raw(*true: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": f"Is{kind}",
            "message": f"it is {kind}",
            "lastTransitionTime": _SINCE,
        }
        for kind in true
    ]
    metadata = {"name": "w", "uid": "uid-w"}
    return {"metadata": metadata, "spec": spec or {"queueName": "team"}, "status": {"conditions": conditions, **status}}


def _assigned(**assignment: Any) -> dict[str, Any]:
    return _raw("QuotaReserved", "Admitted", admission={"podSetAssignments": [{"name": "hosts", **assignment}]})


def test_admitted_is_with_quota_and_all_checks() -> None:
    """And neither evicted, nor deactivated, nor over, nor about to go."""
    both = ("QuotaReserved", "Admitted")

    assert read_workload(_raw(*both)).admitted
    assert read_workload(_raw(*both)).admitted_at == 1795575600.0
    assert not read_workload(_raw("QuotaReserved")).admitted
    assert not read_workload(_raw(*both, "Evicted")).admitted
    assert not read_workload(_raw(*both, "Finished")).admitted
    assert not read_workload(_raw(*both, spec={"active": False})).admitted
    gone = _raw(*both)
    gone["metadata"]["deletionTimestamp"] = _SINCE
    assert not read_workload(gone).admitted


def test_a_workload_may_have_no_spec() -> None:
    """Kueue's types ask for none: such a one is in no queue, and ends neither the watch nor a pass."""
    bare = {"metadata": {"name": "w", "uid": "uid-w"}}

    assert read_workload(bare) == read_workload(kept_of_workload(bare))
    assert read_workload(bare).queue == ""


def test_what_it_was_made_for_is_noted_in_it() -> None:
    """It is held too, without the templates that it tells of; one that an older release has made has no note."""
    noted = _raw()
    noted["metadata"]["annotations"] = {"shardwise.dev/shape": "0123"}

    assert read_workload(kept_of_workload(noted)).shape == "0123"
    assert read_workload(kept_of_workload(_raw())).shape == ""


def test_a_wait_says_for_what() -> None:
    """The words of the queue, or the checks that have not agreed."""
    refused = _raw()
    refused["status"]["conditions"] = [{"type": "QuotaReserved", "status": "False", "message": "too little"}]
    checked = _raw("QuotaReserved", admissionChecks=[{"name": "nodes", "state": "Pending"}])

    assert read_workload(refused).waits == "too little"
    assert read_workload(checked).waits == "quota is reserved; admission checks: nodes is Pending"
    assert read_workload({**_raw(), "status": {}}).waits == ""


def test_pods_get_what_flavors_and_checks_give() -> None:
    """Each flavor once, though several resources are of it; a check may add to that."""
    raw = _assigned(flavors={"cpu": "spot", "memory": "spot", "google.com/tpu": "plain"})
    update = {"name": "hosts", "annotations": {"a": "b"}, "nodeSelector": {"booked": "1"}}
    raw["status"]["admissionChecks"] = [{"name": "nodes", "state": "Ready", "podSetUpdates": [update]}]

    given = read_admission(raw, _FLAVORS)

    assert given == Admission(
        labels={"kueue.x-k8s.io/podset": "hosts"},
        annotations={"a": "b"},
        node_selector={"pool": "spot", "booked": "1"},
        tolerations=({"key": "spot", "operator": "Exists"},),
    )


def test_a_flavor_that_is_not_there_is_named() -> None:
    """Pods without its labels would go anywhere."""
    assert read_admission(_assigned(flavors={"cpu": "new"}), _FLAVORS) == "ResourceFlavor new is not there"


@pytest.mark.parametrize(
    ("part", "racks"),
    [
        (
            {
                "domainCount": 2,
                "valuesPerLevel": [{"universal": "b"}, {"individual": {"prefix": "r", "roots": ["1", "2"]}}],
                "podCounts": {"individual": [2, 1]},
            },
            ["r1", "r1", "r2"],
        ),
        (
            {
                "domainCount": 3,
                "valuesPerLevel": [{"universal": "b"}, {"individual": {"roots": ["x", "y", "z"], "suffix": "-1"}}],
                "podCounts": {"universal": 1},
            },
            ["x-1", "y-1", "z-1"],
        ),
    ],
)
def test_each_rank_has_a_place(part: dict[str, Any], racks: list[str]) -> None:
    """In the order of the ranks, so that neighbours are near to each other; Kueue shortens the list in several ways."""
    given = read_admission(_assigned(topologyAssignment={"levels": ["block", "rack"], "slices": [part]}), _FLAVORS)

    assert isinstance(given, Admission)
    assert given.domains == tuple({"block": "b", "rack": rack} for rack in racks)
    assert given.annotations["kueue.x-k8s.io/workload"] == "w"
