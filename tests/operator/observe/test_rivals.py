"""Jobs that hold a part each: the youngest stands back, if that helps."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.operator.building import pod

from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.rivals import Rivals
from shardwise_operator.render.names import pod_name
from shardwise_operator.runtime.kinds import PODS, TRAINING_JOBS, Kind, Object

CHIPS, OTHERS = {"chips": "v5p"}, {"chips": "v6e"}


class _Caches:
    """The jobs of a cluster with their pods: of each its age, its phase, and the pods that it holds and lacks."""

    def __init__(self, **jobs: tuple[str, int, int, dict[str, str]]) -> None:
        self._jobs = jobs

    def get(self, kind: Kind, namespace: str, name: str) -> None:
        raise AssertionError((kind, namespace, name))

    def list(self, kind: Kind) -> Sequence[Object]:
        assert kind == TRAINING_JOBS
        return [{"metadata": _metadata(name), "status": {"phase": self._jobs[name][0]}} for name in self._jobs]

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> Sequence[Object]:
        assert (kind, namespace) == (PODS, "default")
        _, held, lacking, selector = self._jobs[owner_uid]
        return [_raw(owner_uid, number, selector, held=number < held) for number in range(held + lacking)]


def _metadata(name: str) -> dict[str, Any]:
    """A job's that is as old as its name is early in the alphabet."""
    return {"namespace": "default", "name": name, "uid": name, "creationTimestamp": f"2026-01-01T00:00:00Z{name[0]}"}


def _raw(job: str, number: int, selector: dict[str, str], *, held: bool) -> Object:
    labels = {"shardwise.dev/slice": f"{number}", "shardwise.dev/host": "0"}
    labels |= {"shardwise.dev/attempt": "0", "shardwise.dev/round": "0"}
    scheduled = {"type": "PodScheduled", "status": "True"} if held else _UNSCHEDULABLE
    spec = {"nodeSelector": selector, **({"nodeName": "a"} if held else {})}
    metadata = {"name": pod_name(job, f"{number}-0", 0), "uid": f"{number}", "labels": labels}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": [scheduled]}}


_UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
HALF = ("Pending", 1, 1, CHIPS)


def _own(held: int, lacking: int, **fields: Any) -> list[Pod]:
    there = [pod(f"{number}-0", selector=CHIPS, **fields) for number in range(held)]
    return there + [
        pod(f"{held + number}-0", phase="Pending", node=None, selector=CHIPS, unschedulable="no node")
        for number in range(lacking)
    ]


def _elder(name: str, pods: list[Pod], **jobs: tuple[str, int, int, dict[str, str]]) -> str:
    return Rivals(_Caches(**{name: HALF, **jobs})).older(_metadata(name), pods)


def test_the_younger_of_two_stands_back() -> None:
    """Each holds one of the two places that it needs: the younger one gives way, and the older one does not."""
    assert _elder("young", _own(1, 1), elder=HALF) == "default/elder"
    assert _elder("elder", _own(1, 1), young=HALF) == ""


@pytest.mark.parametrize(
    "other",
    [
        ("Running", 1, 1, CHIPS),
        ("Pending", 2, 0, CHIPS),
        ("Pending", 0, 2, CHIPS),
        ("Pending", 1, 1, OTHERS),
        ("Pending", 1, 2, CHIPS),
    ],
)
def test_nobody_stands_back_in_vain(other: tuple[str, int, int, dict[str, str]]) -> None:
    """For one that runs, is whole, holds nothing, needs other machines, or would lack some all the same."""
    assert _elder("young", _own(1, 1), elder=other) == ""


def test_one_stands_back_at_a_time() -> None:
    """Of three with a third each the youngest goes first, for the oldest that the two others can help."""
    third = ("Pending", 1, 2, CHIPS)

    assert _elder("young", _own(1, 2), middle=third, elder=third) == "default/elder"
    assert _elder("middle", _own(1, 2), young=third, elder=third) == ""
    assert (
        _elder("young", _own(1, 2), middle=("Pending", 1, 1, CHIPS), elder=("Pending", 1, 9, CHIPS)) == "default/middle"
    )


def test_who_holds_nothing_has_nothing_to_give() -> None:
    """Nor who lacks nothing, nor whose pods are on their way out."""
    assert _elder("young", _own(0, 2), elder=HALF) == ""
    assert _elder("young", _own(2, 0), elder=HALF) == ""
    assert _elder("young", _own(1, 1, deleting_at=1.0), elder=HALF) == ""
