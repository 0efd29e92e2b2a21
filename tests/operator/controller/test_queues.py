"""Jobs from which a real Kueue takes the quota, and jobs that keep it, on a real API server."""

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.helm import CHARTS, TEAMS, Helm
from tests.cluster.api_server import ApiServer
from tests.cluster.commands import wait
from tests.operator.living import EVICTED
from tests.operator.operating import MERGE, Operator, Place
from tests.operator.queues import ManyAgents, Queues, queued_job

from shardwise.job.document import read_document
from shardwise_operator.runtime.kinds import condition_of

PODS = ("job-0-0-0", "job-0-1-0")
AGAIN = ("job-0-0-1", "job-0-1-1")
_MANY_SECONDS = 180.0  # twenty jobs on a busy machine
_COLLECTED_SECONDS = 120.0  # the garbage collector seeks new kinds rarely
Make = Callable[..., Queues]
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "kueue" / "queue.yaml"
JOB = EXAMPLES / "kubernetes" / "tpu-v5e-queued.yaml"


@pytest.fixture
def helm(_kueue: ApiServer) -> Helm:
    """Return Helm as the administrator of the API server."""
    return Helm(_kueue.kubeconfig)


@pytest.fixture
def kubeconfig(_kueue: ApiServer) -> Path:
    """Return the administrator's way to the API server."""
    return _kueue.kubeconfig


def _reason(place: Place, name: str = "job") -> str:
    return str(place.status(name).get("reason"))


def test_a_preempted_job_saves_first_and_goes_on_later(place: Place, queues: Make, many_agents: ManyAgents) -> None:
    """Its quota goes to the other one when its last pod has ended; admitted again, it goes on where it was."""
    made = queues(2)
    with many_agents.living(place, "job") as hosts, many_agents.living(place, "urgent", 1) as urgent:
        hosts.holds_at, urgent.holds_at = 40, 0
        place.apply(queued_job(priority=made.priority("low")))
        place.until("step 40", lambda: place.status().get("progress", {}).get("step") == 40)
        uid = made.workloads()["job"]["metadata"]["uid"]
        place.apply(queued_job("urgent", priority=made.priority("high")))
        place.until_phase("Running", "urgent")
        status = place.status()

        assert set(many_agents.stopped) == {"192.0.2.1"}
        assert (status["phase"], status["reason"], status["round"]) == ("Pending", "Evicted", 1)
        assert status["message"].startswith("Preempted to accommodate a workload")
        assert status["checkpoint"]["step"] == 40
        assert place.pods() == {}
        urgent.holds_at = hosts.holds_at = 101
        place.until_phase("Complete", "urgent")
        assert place.until_phase("Complete")["progress"]["step"] == 100

    assert made.workloads()["job"]["metadata"]["uid"] == uid
    assert place.status().get("restarts", {}) == {}


def test_of_twenty_jobs_the_ten_with_the_freshest_checkpoints_go(
    place: Place, queues: Make, many_agents: ManyAgents
) -> None:
    """Each of them is asked to save; the others, which would lose hours, are left alone."""
    made, names = queues(40), [f"job-{number:02}" for number in range(20)]
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(many_agents.living(place, name, number)).holds_at = 50
            place.apply(queued_job(name, priority=made.priority("low")))
        wait("all at step 50", lambda: all(_step(place, name) == 50 for name in names), _MANY_SECONDS)
        old, fresh = set(names[::2]), set(names[1::2])
        for name in old:
            _age(place, name)
        wait(
            "the boosts",
            lambda: {job for job, each in made.workloads().items() if _boosted(each)} == old,
            _MANY_SECONDS,
        )
        place.apply(queued_job("urgent", priority=made.priority("high"), cpu="10"))
        wait("its pods", lambda: len(place.pods("urgent")) == 2, _MANY_SECONDS)
        place.until("ten to wait", lambda: {name for name in names if _reason(place, name) == "Evicted"} == fresh)

        assert all(place.status(name)["checkpoint"]["step"] == 50 for name in fresh)
        assert all(place.status(name)["phase"] == "Running" for name in old)
        assert len(set(many_agents.stopped)) == 10


def test_a_suspend_gives_the_quota_back_and_a_resume_queues_anew(
    place: Place, queues: Make, many_agents: ManyAgents
) -> None:
    """Only then may another job have it."""
    made = queues(2)
    with many_agents.living(place, "job") as hosts:
        hosts.holds_at = 40
        place.apply(queued_job())
        place.until("step 40", lambda: _step(place, "job") == 40)
        place.change("job", suspend=True)
        place.until_phase("Suspended")
        place.until("its Workload to go", lambda: not made.workloads())
        place.apply(queued_job("next"))
        place.until_pods("next-0-0-0", "next-0-1-0", job="next")
        place.change("job", suspend=False)
        place.until("it to queue", lambda: _reason(place) == "Queued")
        assert place.pods() == {}
        place.delete("next")
        wait("its pods", lambda: set(place.pods()) == set(AGAIN), _COLLECTED_SECONDS)


def test_a_replaced_pod_does_not_queue(place: Place, queues: Make) -> None:
    """The quota stays with the job, even while another one waits for it."""
    made = queues(2)
    place.apply(queued_job())
    place.until_pods(*PODS)
    place.run(*PODS)
    uid = made.workloads()["job"]["metadata"]["uid"]
    place.apply(queued_job("next"))
    place.until("it to queue", lambda: "insufficient" in place.status("next").get("message", ""))

    place.end("job-0-1-0", 137, conditions=[EVICTED])
    place.until_pods(*PODS, "job-0-1-1")

    assert made.workloads()["job"]["metadata"]["uid"] == uid
    assert place.pods("next") == {}


@pytest.mark.parametrize("how", ["deactivated", "deleted"])
def test_a_workload_that_a_person_takes_away_stops_the_job(
    place: Place, queues: Make, many_agents: ManyAgents, how: str
) -> None:
    """It saves, waits, and goes on when it is admitted again; one that was deleted queues by itself."""
    made = queues(2)
    with many_agents.living(place, "job") as hosts:
        hosts.holds_at = 40
        place.apply(queued_job())
        place.until("step 40", lambda: _step(place, "job") == 40)
        if how == "deactivated":
            made.change("job", {"spec": {"active": False}})
            place.until("it to wait", lambda: place.status()["round"] == 1 and _reason(place) == "Evicted")
            place.until("its quota to be free", lambda: made.condition("job", "QuotaReserved")["status"] == "False")
            place.until("its pods, which have ended, to be gone", lambda: place.pods() == {})
            made.change("job", {"spec": {"active": True}})
        else:
            made.delete("job")
        hosts.holds_at = 101
        done = place.until_phase("Complete")

    assert (done["round"], done["checkpoint"]["step"]) == (1, 100)
    assert len(set(many_agents.stopped)) == 1


def test_jobs_go_on_where_queues_are_turned_off_and_their_quota_is_freed_by_hand(
    place: Place, kubeconfig: Path, many_agents: ManyAgents
) -> None:
    """The operator lets Workloads be: as docs/queues.md says, a person deletes them by their label."""
    with many_agents.living(place, "job") as hosts:
        hosts.holds_at = 40
        with Operator(kubeconfig, place.namespace, many_agents, kueue=True):
            made = Queues(place, 2)
            place.apply(queued_job())
            place.until("step 40", lambda: _step(place, "job") == 40)
        with Operator(kubeconfig, place.namespace, many_agents):
            assert made.condition("job", "Admitted")["status"] == "True"
            selector = ("--namespace", place.namespace, "--selector", "shardwise.dev/job")
            place.client.kubectl("delete", "workloads.kueue.x-k8s.io", *selector)
            hosts.holds_at = 101
            status = place.until_phase("Complete")

            assert made.workloads() == {}
            assert (status["round"], status.get("restarts", {}), many_agents.stopped) == (0, {}, [])
        made.remove()


def test_quota_that_is_held_and_not_used_goes_to_another_job(place: Place, queues: Make) -> None:
    """The hosts go with it, no budget is charged, and the job stands behind the other one in its queue."""
    made = queues(2)
    place.apply(queued_job(recovery={"startWithin": "20s"}))
    place.until_pods(*PODS)
    uid = made.workloads()["job"]["metadata"]["uid"]
    place.until("it to say so", lambda: "quota is held since" in place.status().get("message", ""))
    place.apply(queued_job("next"))
    place.until("the quota to be another's", lambda: set(place.pods("next")) == {"next-0-0-0", "next-0-1-0"})
    place.until("it to queue again", lambda: "insufficient" in place.status().get("message", ""))

    assert (_reason(place), place.status()["round"], place.pods()) == ("Queued", 1, {})
    assert made.workloads()["job"]["metadata"]["uid"] != uid
    assert "charged" not in place.status()
    place.delete("next")
    wait("its pods", place.pods, _COLLECTED_SECONDS)


def test_a_job_on_fewer_slices_keeps_the_quota_of_all(place: Place, queues: Make) -> None:
    """Admitted with two, of which one finds no node, it goes on with the other, and waits for its node."""
    made = queues(2)
    hardware = {"accelerator": "cpu-sim", "topology": "1x2", "slices": 2}
    place.apply(queued_job(hardware=hardware, recovery={"startWithin": "20s", "minSlices": 1}))
    place.until_pods("job-0-0-0", "job-1-0-0")
    place.run("job-0-0-0")
    uid = made.workloads()["job"]["metadata"]["uid"]
    place.until("it to begin again", lambda: place.leaving("job-0-0-0"))
    place.remove("job-0-0-0")
    place.until_pods("job-0-0-1")
    place.run("job-0-0-1")
    place.until("a placeholder", lambda: any(name.startswith("job-1-0-") for name in place.pods()))
    place.apply(queued_job("next", cpu="500m"))
    place.until("the other to queue", lambda: "insufficient" in place.status("next").get("message", ""))

    workload = made.workloads()["job"]
    assert (workload["metadata"]["uid"], workload["spec"]["podSets"][0]["count"]) == (uid, 2)
    assert (place.status()["round"], place.status()["slices"]) == (1, 1)
    assert condition_of(place.job(), "FewerSlices")["status"] == "True"
    assert place.pods("next") == {}


def _boosted(workload: dict[str, Any]) -> bool:
    return "kueue.x-k8s.io/priority-boost" in workload["metadata"].get("annotations", {})


def _step(place: Place, name: str) -> int:
    return int(place.status(name).get("progress", {}).get("step", 0))


def _age(place: Place, name: str) -> None:
    """Have a job look as if it had run, and saved nothing, for two hours."""
    path = place.path("trainingjobs", f"{name}/status", "apis/shardwise.dev/v1alpha1")
    place.client.request("PATCH", path, {"status": {"runTime": "2020-01-01T00:00:00Z"}}, MERGE)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    ("queue", "job", "hosts"), [("queue.yaml", "tpu-v5e-queued", 1), ("queue-h100.yaml", "gpu-h100-queued", 2)]
)
def test_the_example_of_a_queue_admits_the_example_of_a_job(place: Place, queue: str, job: str, hosts: int) -> None:
    """A queue of the examples, in this namespace, has quota for the job beside it, whose pods get its flavor."""
    text = (EXAMPLES / "kueue" / queue).read_text(encoding="utf-8")
    text = text.replace("namespace: training", f"namespace: {place.namespace}")
    flavor, cluster_queue, _ = yaml.safe_load_all(text)
    place.client.kubectl("apply", "--server-side", "--filename=-", stdin=text)
    place.client.kubectl("create", "serviceaccount", "trainer", "--namespace", place.namespace)
    place.client.kubectl("apply", "--namespace", place.namespace, "--filename", EXAMPLES / "kubernetes" / f"{job}.yaml")
    place.until("its admission", lambda: condition_of(place.job(job), "Admitted").get("status") == "True")
    place.until("its pods", lambda: len(place.pods(job)) == hosts)

    admitted = condition_of(place.job(job), "Admitted")["message"]
    assert admitted.startswith(f"by ClusterQueue {cluster_queue['metadata']['name']}")
    for pod in place.pods(job).values():
        assert flavor["spec"]["nodeLabels"].items() <= pod["spec"]["nodeSelector"].items()
    place.delete(job)
    place.client.kubectl("delete", "--wait=false", "--filename=-", stdin=text)


@pytest.mark.usefixtures("queues")
def test_a_team_uses_what_the_other_leaves_free(place: Place, helm: Helm, tmp_path: Path) -> None:
    """The chart of teams, this namespace as `vision`: 32 chips are its own, 32 lent, and no more are there.

    The jobs use the account that it makes. One without an accelerator counts on the nodes that have none. Uninstalled,
    the chart leaves the namespaces.
    """
    values, flavor = tmp_path / "teams.yaml", f"{place.namespace}-v5e"
    names = {"vision": place.namespace, "language": f"{place.namespace}-other", "v5e": flavor}
    given = re.sub(r"\b(vision|language|v5e)\b", lambda found: names[found[0]], TEAMS.read_text(encoding="utf-8"))
    values.write_text(given, encoding="utf-8")
    # The rule is for all namespaces, those of other tests too; this one is there already.
    options = ("--set", "requireQueue=false", "--take-ownership", "--namespace", "default", "--values", values)
    helm("upgrade", "--install", "teams", CHARTS / "training-teams", *options)
    job = read_document(JOB).data
    job["spec"]["hardware"]["topology"] = "4x8"
    for name, words in (("own", "by ClusterQueue"), ("lent", "by ClusterQueue"), ("third", "insufficient")):
        place.apply({**job, "metadata": {**job["metadata"], "name": name}})
        wait(words, partial(_says, place, name, words))

    assert condition_of(place.job("third"), "Admitted")["status"] == "False"
    place.apply(queued_job("simulated"))
    wait("quota for it", partial(_says, place, "simulated", "by ClusterQueue"))
    assert _flavors(place, "simulated") == {"plain"}
    assert _flavors(place, "own") == {flavor}
    for name in ("own", "lent", "third", "simulated"):
        place.delete(name)
    helm("uninstall", "teams", "--namespace", "default")
    for name in (place.namespace, names["language"]):
        place.client.kubectl("get", "namespace", name)


def _flavors(place: Place, name: str) -> set[str]:
    """The flavors in which Kueue counts a job."""
    selected = ("--namespace", place.namespace, "--selector", f"shardwise.dev/job={name}", "--output", "json")
    (workload,) = json.loads(place.client.kubectl("get", "workloads.kueue.x-k8s.io", *selected))["items"]
    (hosts,) = workload["status"]["admission"]["podSetAssignments"]
    return set(hosts["flavors"].values())


def _says(place: Place, name: str, words: str) -> bool:
    return words in str(condition_of(place.job(name), "Admitted").get("message", ""))


def test_the_page_shows_the_example_of_a_queue() -> None:
    """docs/queues.md has the objects of queue.yaml as they stand there, and the job's label names its queue."""
    text = EXAMPLE.read_text(encoding="utf-8")

    assert f"```yaml\n{text[text.index('apiVersion') :]}```" in (ROOT / "docs" / "queues.md").read_text(
        encoding="utf-8"
    )
