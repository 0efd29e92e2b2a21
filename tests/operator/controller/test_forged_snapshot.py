"""A round is made of what its job and class say, and not of what somebody puts into its ConfigMap's place.

Whoever may write ConfigMaps and jobs, but no pods, could have pods of any kind made by the operator's rights.
"""

import json
from typing import Any

import pytest
from tests.operator.building import manifest, snapshot
from tests.operator.operating import Place

from shardwise_operator.render.names import MANAGED_BY_LABEL, MANAGER
from shardwise_operator.runtime.kinds import TRAINING_JOBS


def _forge(place: Place, round_: int) -> dict[str, Any]:
    """Make a round's ConfigMap, of a pod that sees its node's processes, as a member of the namespace may."""
    data = snapshot(manifest()).data
    resolved = json.loads(data["resolved.yaml"])
    resolved["spec"]["pod"]["image"] = "registry.example/shell"
    resolved["spec"]["pod"]["template"]["spec"]["hostPID"] = True
    owner = TRAINING_JOBS.reference("job", place.job()["metadata"]["uid"]) | {"controller": True}
    metadata = {"name": f"job-shardwise-{round_}", "labels": {MANAGED_BY_LABEL: MANAGER}, "ownerReferences": [owner]}
    forged = {"metadata": metadata, "data": {**data, "resolved.yaml": json.dumps(resolved)}}
    made: dict[str, Any] = place.client.request("POST", place.path("configmaps"), forged)
    return made


def _stays_out(place: Place, forged: dict[str, Any]) -> None:
    name, uid = forged["metadata"]["name"], forged["metadata"]["uid"]
    place.until("another ConfigMap", lambda: _uid(place, name) not in ("", uid))
    for pod in place.pods().values():
        assert "hostPID" not in pod["spec"]
        assert pod["spec"]["containers"][0]["image"] == "localhost/trainer:dev"
    found = place.client.request("GET", f"{place.path('events')}?fieldSelector=reason=NameConflict")["items"]
    assert f"ConfigMap {name} was not made by this operator, and is deleted" in [each["message"] for each in found]


def _uid(place: Place, name: str) -> str:
    there = place.find("configmaps", name)
    return there["metadata"]["uid"] if there else ""


@pytest.mark.usefixtures("operator")
def test_a_forged_round_is_made_anew(place: Place) -> None:
    """Whether it was there before the job began, or before its next round."""
    place.apply(manifest(suspend=True))
    place.until_phase("Suspended")
    first = _forge(place, 0)
    place.change("job", suspend=False)
    place.until_pods("job-0-0-0", "job-0-1-0")
    _stays_out(place, first)

    second = _forge(place, 1)
    place.change("job", suspend=True)
    place.until_phase("Suspended")
    place.change("job", suspend=False)
    place.until_pods("job-0-0-1", "job-0-1-1")
    _stays_out(place, second)
