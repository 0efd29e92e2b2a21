"""Faults of the control plane: of the API server, of the way to it, and of the operator itself.

Each is put once to three jobs: one that was applied a moment ago, one whose host 0 has just been evicted, and one whose
run ends. The API server, etcd and the operator's process are real; the hosts are stand-ins, so that nothing is trained
and no bits can be compared. What is checked for each job: it comes to its right end, no pod is made twice, none more
than must be, and nothing is charged but the eviction.
"""

import signal
import threading
import time
from collections.abc import Callable
from functools import cache, partial

from benchmarks.faults.operators import SECOND_LEASE, forget_lease, server, without_right
from benchmarks.faults.outcome import Row
from benchmarks.faults.scene import PODS, Fault, Scene, measure
from tests.cluster.commands import wait
from tests.operator.runtime.meddling import Asked, Refusal

_SECONDS, _SOME_SECONDS, _LEASE_SECONDS = 20.0, 5.0, 15.0
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.shardwise.dev"


# ------------------------------------------------------------------------------------------------ the API server itself


def _down(program: str, seconds: float) -> Callable[[Scene], None]:
    """A program of the control plane is killed just after the jobs have changed, and comes back."""

    def put(scene: Scene) -> None:
        scene.act()
        scene.began = time.time()
        server().kill(program)
        time.sleep(seconds)  # nobody answers meanwhile
        server().start_again(program)

    return put


def _answers(
    status: int, *, of: Callable[[Asked], bool] = lambda _: True, retry_after: str = ""
) -> Callable[[Scene], None]:
    """An error is all that is answered for a while."""

    def put(scene: Scene) -> None:
        between = scene.leader.between
        between.refuses = lambda asked: Refusal(status, retry_after) if of(asked) else None
        between.cut_watches()
        scene.began = time.time()
        scene.act()
        scene.last(_SECONDS)
        between.refuses = lambda _: None

    return put


def _slow(scene: Scene) -> None:
    scene.leader.between.drip_seconds = 0.5
    scene.began = time.time()
    scene.act()
    scene.last(_SECONDS)
    scene.leader.between.drip_seconds = 0.0


# ------------------------------------------------------------------------------------------------------ the way to it


def _cut(scene: Scene) -> None:
    scene.began = time.time()
    scene.act()
    for _ in range(int(_SECONDS)):
        scene.leader.between.cut_watches()
        scene.last(1.0)


def _half_open(scene: Scene) -> None:
    scene.leader.between.freeze()
    scene.began = time.time()
    scene.act()


def _twice(scene: Scene) -> None:
    scene.leader.between.event = lambda line: (line, line)
    scene.leader.between.cut_watches()  # what begins anew is told from now on
    scene.began = time.time()
    scene.act()


def _missed(scene: Scene) -> None:
    """No event comes for a while, and then the versions that the watches stood at are too old."""
    between, refused = scene.leader.between, set[str]()

    def too_old(asked: Asked) -> Refusal | None:
        kind = asked.path.partition("?")[0]
        if not asked.watches or kind in refused:
            return None
        refused.add(kind)
        return Refusal(410)

    between.event = lambda _: ()
    scene.began = time.time()
    scene.act()
    scene.last(_SECONDS)
    between.event = lambda line: (line,)
    between.refuses = too_old
    between.cut_watches()


# --------------------------------------------------------------------------------------------------------- the operator


def _killed(scene: Scene) -> None:
    scene.act()
    scene.began = time.time()
    scene.leader.signal(signal.SIGKILL)


def _killed_at_every_write(scene: Scene) -> None:
    """Each write is the last that its process makes, and it never hears that it was carried out."""
    killed = threading.Lock()

    def written(_: Asked) -> bool:
        with killed:  # of two writes at once, either may be the last
            scene.leader.signal(signal.SIGKILL)
            forget_lease()
        return False

    scene.leader.first_backoff_seconds = 0.0
    scene.leader.between.written = written
    scene.began = time.time()
    scene.act()


def _frozen(scene: Scene) -> None:
    """The leader stands still for twice its lease; the other takes over, and what was the leader writes no more."""
    late: list[Asked] = []
    scene.act()
    scene.began = time.time()
    scene.leader.signal(signal.SIGSTOP)
    scene.last(2 * _LEASE_SECONDS)

    def written(asked: Asked) -> bool:
        late.append(asked)
        return True

    scene.leader.between.written = written
    scene.leader.keeps = False
    scene.leader.signal(signal.SIGCONT)
    wait("the end of the one that led", lambda: scene.leader.ends, 60)
    assert not late, f"a leader that was frozen has written {late}"


def _other_leads(scene: Scene) -> None:
    scene.act()
    scene.began = time.time()
    scene.leader.keeps = False
    scene.leader.signal(signal.SIGKILL)


def _both_lead(scene: Scene) -> None:
    """Whatever either of them has found, the other finds, too."""
    scene.began = time.time()
    scene.act()


def _upgraded(scene: Scene) -> None:
    """A newer CRD has a field more."""
    client = server().client
    new = {"x-test": {"type": "string"}}
    versions = client.request("GET", _CRD)["spec"]["versions"]
    versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] |= new
    scene.act()
    scene.began = time.time()
    client.request("PATCH", _CRD, {"spec": {"versions": versions}}, "application/merge-patch+json")


def _forbidden(kind: str, name: str, resource: str, verb: str) -> Callable[[Scene], None]:
    """The operator may not do one thing for a while."""

    def put(scene: Scene) -> None:
        with without_right(kind, name, resource, verb):
            scene.last(1.0)  # the API server has it in its cache by then
            scene.leader.between.cut_watches()
            scene.began = time.time()
            scene.act()
            scene.last(_SECONDS)

    return put


def _role(verb: str, resource: str) -> Callable[[Scene], None]:
    return _forbidden("clusterrole", "shardwise-operator", resource, verb)


_TWO = ("shardwise", "shardwise")
_FAULTS = (
    Fault(
        name="API server down 60 s",
        put=_down("kube-apiserver", 60.0),
        note="started again after 60 s; then the operator's old lease has to run out",
    ),
    Fault(name="etcd restarted", put=_down("etcd", _SOME_SECONDS), note="killed, and started again after 5 s"),
    Fault(name="answers 409", put=_answers(409, of=lambda asked: asked.method != "GET"), note="every write, for 20 s"),
    Fault(name="answers 410", put=_answers(410, of=lambda asked: asked.watches), note="every watch, for 20 s"),
    Fault(name="answers 429", put=_answers(429, retry_after="1"), note="all requests, for 20 s, Retry-After 1"),
    Fault(name="answers 500", put=_answers(500), note="all requests, for 20 s"),
    Fault(name="answers 503", put=_answers(503), note="all requests, for 20 s"),
    Fault(name="slow body", put=_slow, note="each answer takes 4 s, for 20 s"),
    Fault(name="watch cut", put=_cut, note="every second for 20 s"),
    Fault(
        name="half-open connection",
        put=_half_open,
        note="all connections of the moment stay open and are silent; new ones are well",
    ),
    Fault(name="events twice", put=_twice, note="each event of each watch"),
    Fault(name="events missed", put=_missed, note="none for 20 s, and the watches' versions are too old then"),
    Fault(name="operator killed", put=_killed, note="started again at once; its old lease has 15 s to run"),
    Fault(
        name="operator killed after each of its writes",
        put=_killed_at_every_write,
        note="before it hears of them; the next one leads at once",
    ),
    Fault(name="leader frozen past its lease and thawed", put=_frozen, leases=_TWO, note="for 30 s, beside another"),
    Fault(name="leader killed beside another", put=_other_leads, leases=_TWO, note="and not started again"),
    Fault(
        name="two operators that both lead",
        put=_both_lead,
        leases=("shardwise", SECOND_LEASE),
        note="each has a lease of its own, by mistake",
    ),
    Fault(name="CRD upgraded under running jobs", put=_upgraded, note="by one that has a field more"),
    Fault(name="create pods withdrawn", put=_role("create", "pods"), note="for 20 s"),
    Fault(name="watch pods withdrawn", put=_role("watch", "pods"), note="for 20 s"),
    Fault(name="update of status withdrawn", put=_role("update", "trainingjobs/status"), note="for 20 s"),
    Fault(
        name="update of the lease withdrawn",
        put=_forbidden("role", "shardwise-lease", "leases", "update"),
        note="for 20 s",
    ),
)


def _row(fault: Fault) -> Row:
    outcomes = cache(partial(measure, fault))
    return Row(place="control plane", fault=fault.name, phases=tuple(PODS), measure=lambda phase: outcomes()[phase])


ROWS: tuple[Row, ...] = tuple(_row(fault) for fault in _FAULTS)
