"""What must not go wrong when views are old, names are taken, rights are missing, and operators come and go."""

import time
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.building import SETTINGS, classes, manifest, record, seen
from tests.operator.operating import Operator, Place, StandInAgents, told

from shardwise_operator.config import Settings
from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.plan import Create
from shardwise_operator.observe.observe import RECENT_SECONDS, Observer
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.errors import AlreadyExistsError, ConflictError
from shardwise_operator.runtime.kinds import CONFIG_MAPS, SECRETS, TRAINING_JOBS, Kind, Object
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.apply import Applier
from shardwise_operator.write.requests import Requests

NETWORKING = "apis/networking.k8s.io/v1"


class _OldCaches:
    """Caches that have seen the round's ConfigMap and the classes, and nothing that came after."""

    def __init__(self, config_maps: list[Object]) -> None:
        self._config_maps = config_maps

    def get(self, kind: Kind, namespace: str, name: str) -> None:
        """Return nothing: no node is watched."""

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> list[Object]:
        """Return the ConfigMaps."""
        del namespace, owner_uid
        return self._config_maps if kind == CONFIG_MAPS else []

    def list(self, kind: Kind) -> list[Object]:
        """Return the classes."""
        del kind
        return [{**each, "metadata": {**each["metadata"], "resourceVersion": "1"}} for each in classes().values()]


@pytest.mark.usefixtures("operator")
def test_an_old_view_does_no_harm(place: Place, api_server: ApiServer, agents: StandInAgents) -> None:
    """A second writer that sees neither pods nor children makes nothing twice, and its status is refused."""
    agents.answer = told()
    before, running = place.train(manifest())
    pods = {name: pod["metadata"]["uid"] for name, pod in place.pods().items()}
    api = Api(connect(str(api_server.kubeconfig)), Metrics(), limiter=Limiter(100, 100))
    settings = Settings(
        trainer_image="image", operator_namespace="x", managed_by="", poll_seconds=1.0, tokens=Tokens(b"0" * 32)
    )
    applier = Applier(api, Requests(agents, lambda _: None), settings.tokens)
    old = {**place.job(), "status": {name: running[name] for name in ("attempts", "round", "startTime")}}
    config_map = place.client.request("GET", place.path("configmaps", "job-shardwise-0"))

    unseen = Observer(_OldCaches([]), api, settings).observe(old, None, time.time())
    with pytest.raises(AlreadyExistsError):
        applier.apply(unseen, decide(unseen, settings, time.time()))
    current = Observer(_OldCaches([config_map]), api, settings).observe(old, None, time.time())
    plan = decide(current, settings, time.time())
    applied = applier.apply(current, plan)
    with pytest.raises(ConflictError):
        api.replace_status(TRAINING_JOBS, {**before, "status": {"phase": "Failed"}})

    assert [step.manifest["metadata"]["name"] for step in plan.steps if isinstance(step, Create)][-1] == "job-0-1-0"
    assert {pod["metadata"]["uid"] for pod in applied.pods} == set(pods.values())
    assert {name: pod["metadata"]["uid"] for name, pod in place.pods().items()} == pods
    assert place.status()["phase"] == "Running"


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("plural", "group", "body"),
    [
        ("configmaps", "api/v1", {"metadata": {"name": "job-shardwise-0"}, "data": {"mine": "yes"}}),
        ("networkpolicies", NETWORKING, {"metadata": {"name": "job-shardwise"}, "spec": {"podSelector": {}}}),
    ],
)
def test_a_user_s_own_object_is_not_touched(place: Place, plural: str, group: str, body: Object) -> None:
    """The job says whose name is in the way, makes no pod, and goes on when the name is free."""
    mine = place.client.request("POST", place.path(plural, group=group), body)
    place.apply(manifest())

    place.until("the conflict", lambda: place.status().get("reason") == "NameConflict")

    assert plural.removesuffix("s").removesuffix("ie") in place.status()["message"].lower()
    assert place.pods() == {}
    found = place.client.request("GET", place.path(plural, mine["metadata"]["name"], group))
    assert found["metadata"]["resourceVersion"] == mine["metadata"]["resourceVersion"]


@pytest.mark.usefixtures("operator")
def test_a_quota_is_said(place: Place) -> None:
    """A pod that the API server refuses is a reason to wait, with its words; it is made when there is room."""
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    place.client.request("POST", place.path("resourcequotas"), quota)
    path = place.path("resourcequotas", "small")
    place.until("the quota", lambda: place.client.request("GET", path).get("status", {}).get("hard"))
    place.apply(manifest())

    place.until("the quota's words", lambda: place.status().get("reason") == "QuotaExceeded")

    assert "exceeded quota: small" in place.status()["message"]


@pytest.mark.usefixtures("operator")
def test_an_unknown_class_is_said_and_healed(place: Place) -> None:
    """The job waits with the valid names, and begins when its class comes."""
    name = f"{place.namespace}-class"
    place.apply(manifest(hardware={"accelerator": name, "topology": "2x2"}))
    place.until("the problem", lambda: place.status().get("reason") == "Invalid")
    assert "cpu-sim" in place.status()["message"]

    new = {**classes()["cpu-sim"], "metadata": {"name": name}}
    place.client.request("POST", "/apis/shardwise.dev/v1alpha1/acceleratorclasses", new)

    place.until_pods("job-0-0-0", "job-0-1-0")
    path = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs/shardwise"
    place.until("the catalogue", lambda: name in str(place.client.request("GET", path)["spec"]["classes"]))


@pytest.mark.usefixtures("operator")
def test_a_catalogue_that_goes_or_changes_is_mended(place: Place) -> None:
    """Admission believes it, and no class has changed."""
    catalogues = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs"
    path = f"{catalogues}/shardwise"

    def names() -> list[str]:
        listed = place.client.request("GET", catalogues)["items"]
        return [entry["name"] for each in listed for entry in each["spec"]["classes"]]

    place.until("the catalogue", lambda: "cpu-sim" in names())
    place.client.request("DELETE", path)
    place.until("another", lambda: "cpu-sim" in names())
    edited = {"spec": {"classes": [{"name": "abacus", "kernels": ["plain"]}]}}
    place.client.request("PATCH", path, edited, "application/merge-patch+json")

    place.until("the edit's end", lambda: "abacus" not in names() and "cpu-sim" in names())


@pytest.mark.usefixtures("operator")
def test_of_two_jobs_with_half_each_the_younger_gives_way(place: Place) -> None:
    """Once, and at once; the older one keeps what it holds."""
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
    jobs = [place.apply(manifest(name))["metadata"] for name in ("left", "right")]
    older, younger = (each["name"] for each in sorted(jobs, key=lambda job: (job["creationTimestamp"], job["uid"])))
    for job in (older, younger):
        place.until_pods(f"{job}-0-0-0", f"{job}-0-1-0", job=job)
        place.bind(f"{job}-0-0-0")
        place.report(f"{job}-0-1-0", conditions=[unschedulable])

    place.until("one to give way", lambda: place.status(younger).get("reason") == "PodsReleased")
    place.until("its pods' end", lambda: list(place.pods(younger)) == [f"{younger}-0-0-0"])
    place.remove(f"{younger}-0-0-0")
    place.until_pods(job=younger)

    assert place.status(younger)["attempts"] == {"0-0": 1, "0-1": 1}
    assert f"job {older} is older" in place.status(younger)["message"]
    assert place.status(older)["attempts"] == {"0-0": 0, "0-1": 0}


@pytest.mark.usefixtures("operator")
def test_a_running_job_is_frozen(place: Place, agents: StandInAgents) -> None:
    """A replaced pod is like the one before it, though its class has changed since."""
    name = f"{place.namespace}-frozen"
    path = "/apis/shardwise.dev/v1alpha1/acceleratorclasses"
    made = {**classes()["cpu-sim"], "metadata": {"name": name}}
    made["spec"] = {**made["spec"], "env": [{"name": "COLOUR", "value": "red"}]}
    place.client.request("POST", path, made)
    agents.answer = told()
    place.train(manifest(hardware={"accelerator": name, "topology": "2x2"}))
    changed = {"spec": {"env": [{"name": "COLOUR", "value": "blue"}]}}
    place.client.request("PATCH", f"{path}/{name}", changed, "application/merge-patch+json")

    place.end("job-0-1-0", 137)
    place.until("the replacement", lambda: "job-0-1-1" in place.pods())

    assert {"name": "COLOUR", "value": "red"} in place.pods()["job-0-1-1"]["spec"]["containers"][0]["env"]


def test_what_was_made_is_remembered_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Secret is never seen in a cache, so it must not keep a job looked at for ever."""
    made: Object = {"metadata": {"uid": "of the secret"}}
    api: Any = None
    observer = Observer(_OldCaches([]), api, SETTINGS)
    observed = seen()

    observer.remember(observed, [(SECRETS, made)])
    now = time.monotonic()
    before = observer.remembers(observed.uid)
    monkeypatch.setattr(time, "monotonic", lambda: now + RECENT_SECONDS + 1.0)

    assert (before, observer.remembers(observed.uid)) == (True, False)


@pytest.mark.usefixtures("operator")
def test_a_pod_that_goes_as_soon_as_it_is_made(place: Place) -> None:
    """It is replaced, though the operator remembers having made it; its cache may never have shown it."""
    place.apply(manifest())
    for attempt in range(2):
        name = f"job-0-1-{attempt}"
        place.until_pods("job-0-0-0", name)
        place.client.request("DELETE", place.path("pods", name), {"gracePeriodSeconds": 0})
    place.until_pods("job-0-0-0", "job-0-1-2")


@pytest.mark.usefixtures("operator")
def test_deletion_takes_everything(place: Place) -> None:
    """The job's children go with it; what is left of its name is free."""
    place.apply(manifest())
    place.until_pods("job-0-0-0", "job-0-1-0")
    place.delete()

    place.until_pods()
    place.until("the rest", lambda: not place.there("configmaps", "job-shardwise-0"))
    place.until("the policy", lambda: not place.there("networkpolicies", "job-shardwise", NETWORKING))
    place.until("the Secret", lambda: not place.client.request("GET", place.path("secrets"))["items"])


def test_a_new_operator_changes_nothing(place: Place, api_server: ApiServer, namespace: str) -> None:
    """A job that runs runs on, and one that has finished stays finished, though its pods are gone."""
    agents = StandInAgents()
    agents.answer = told()
    with Operator(api_server.kubeconfig, namespace, agents):
        for name in ("runs", "done"):
            place.apply(manifest(name))
            place.until_pods(f"{name}-0-0-0", f"{name}-0-1-0", job=name)
            place.run(f"{name}-0-0-0", f"{name}-0-1-0")
            place.until_phase("Running", name)
        for pod in place.pods("done"):
            place.end(pod, 0, record(0))
        place.until_phase("Complete", "done")
        place.until("the last word on its pods", lambda: place.status("done")["hosts"]["ready"] == 0)
    for pod in place.pods("done"):
        place.remove(pod)
    pods, done = place.pods("runs"), place.job("done")

    with Operator(api_server.kubeconfig, namespace, agents) as second:
        agents.answer = told(step=55)
        place.until("step 55", lambda: place.status("runs")["progress"]["step"] == 55)
        passes = second.metrics.registry.get_sample_value("shardwise_operator_reconciles_total", {"result": "failed"})

    assert not passes
    assert {name: pod["metadata"]["uid"] for name, pod in place.pods("runs").items()} == {
        name: pod["metadata"]["uid"] for name, pod in pods.items()
    }
    assert place.job("done") == done


def test_jobs_of_another_operator_are_left_alone(place: Place, api_server: ApiServer, namespace: str) -> None:
    """`spec.managedBy` says whose they are: another operator's, or another controller's."""
    with Operator(api_server.kubeconfig, namespace, StandInAgents(), managed_by="ours"):
        place.apply(manifest("theirs"))
        place.apply(manifest("elsewhere", managedBy="kueue.x-k8s.io/multikueue"))
        place.apply(manifest("mine", managedBy="ours"))
        place.until_pods("mine-0-0-0", "mine-0-1-0", job="mine")

        assert place.status("theirs") == {}
        assert place.status("elsewhere") == {}
