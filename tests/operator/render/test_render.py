"""What the operator makes of a job, whole, for every built-in class; and what of it comes from where."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from tests.conftest import Golden
from tests.operator.building import SETTINGS, UID, asking, begun, classes, manifest, seen, snapshot, workload

from shardwise.job.document import Document, parse_document
from shardwise.job.load import dump, loads
from shardwise.job.resolve import resolve
from shardwise.protocol.errors import JobError
from shardwise.protocol.pods import CONTRACT
from shardwise_operator.config import read_key
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod_defaults import NO_DEFAULTS
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.snapshot import read_snapshot
from shardwise_operator.observe.workload import Admission
from shardwise_operator.render.children import children
from shardwise_operator.render.pods import Place, pod_manifest
from shardwise_operator.render.preflight import plan_manifest
from shardwise_operator.render.secret import Tokens, secret_manifest
from shardwise_operator.runtime.kinds import NETWORK_POLICIES

# Of each class a topology of several hosts, where it has one.
_TOPOLOGIES = {
    "cpu-sim": "2x2",
    "eks-gpu-h100": "2x8",
    "eks-gpu-h200": "2x8",
    "gke-gpu-a100": "2x8",
    "gke-gpu-b200": "2x8",
    "gke-gpu-gb200": "2x4",
    "gke-gpu-h100": "2x8",
    "gke-gpu-h100-mega": "2x8",
    "gke-gpu-h200": "2x8",
    "gke-gpu-l4": "2x1",
    "gpu": "2x4",
    "gpu-h100": "2x8",
    "tpu-v4": "2x2x2",
    "tpu-v5e": "4x4",
    "tpu-v5e-4t": "2x4",
    "tpu-v5p": "2x2x4",
    "tpu-v6e": "4x4",
    "tpu-v6e-4t": "2x4",
    "tpu-v7x": "2x2x2",
}


def _two_slices(accelerator: str) -> Observed:
    hardware = {"accelerator": accelerator, "topology": _TOPOLOGIES[accelerator], "slices": 2}
    made_of = snapshot(manifest(hardware=hardware))
    return seen(begun(hosts=made_of.hosts), made_of=made_of)


def _pod(host: str = "0-0", place: Place = Place(), **pod: Any) -> Any:  # noqa: B008  frozen
    job = asking(manifest(), **pod)
    return pod_manifest(seen(begun(), made_of=snapshot(job)), host, place)


def test_every_class_has_its_topology() -> None:
    """The golden files cover every built-in class."""
    assert set(_TOPOLOGIES) == set(classes())


@pytest.mark.parametrize("accelerator", _TOPOLOGIES)
def test_pods_of_every_class(accelerator: str, golden: Golden) -> None:
    """The first host of the first slice and the last host of the last, as they go to the API server."""
    observed = _two_slices(accelerator)
    pods = [pod_manifest(observed, host, Place()) for host in (observed.hosts[0], observed.hosts[-1])]

    golden(f"{accelerator}.yaml", yaml.safe_dump_all(pods, sort_keys=False))


def test_local_checkpoints_have_a_volume_in_memory() -> None:
    """It is below the scratch folder, and there in jobs that make such checkpoints alone."""

    def volumes(**checkpoint: Any) -> dict[str, Any]:
        job = manifest()
        job["spec"]["training"]["checkpoint"] = checkpoint
        spec = pod_manifest(seen(begun(), made_of=snapshot(job)), "0-0", Place())["spec"]
        sources = {volume["name"]: volume for volume in spec["volumes"]}
        return {mount["mountPath"]: sources[mount["name"]] for mount in spec["containers"][0]["volumeMounts"]}

    without, with_it = volumes(everySteps=10), volumes(everySteps=10, local={"everySteps": 2})
    local = {"/sw/local": {"name": "shardwise-local", "emptyDir": {"medium": "Memory"}}}
    assert with_it == {**without, **local}


def test_pods_of_a_template(golden: Golden) -> None:
    """Host 0 of a slice with a place to keep, whose template has much that Shardwise knows nothing of; both hold."""
    job = manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x4"})
    job["spec"]["pod"]["template"]["metadata"] = {"labels": {"team": "vision"}, "annotations": {"a.b/c": "d"}}
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "9Gi"}}}
    asking(
        job,
        agent={
            "env": [{"name": "HF_TOKEN", "valueFrom": secret}, {"name": "HOME", "value": "/root"}],
            "volumeMounts": [
                {"name": "runs", "mountPath": "/runs"},
                {"name": "cache", "mountPath": "/cache"},
            ],
        },
        affinity={
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]},
        },
        containers=[{"name": "mesh", "image": "mesh:1", "securityContext": {"runAsUser": 7}}],
        initContainers=[{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        volumes=[{"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}],
        topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        runtimeClassName="gvisor",
        securityContext={"fsGroup": 2000, "supplementalGroups": [3000]},
    )
    made_of = snapshot(job)
    made = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), "0-0", Place())

    golden("template.yaml", yaml.safe_dump(made, sort_keys=False))


def test_a_node_is_avoided_beside_the_job_s_own_affinity() -> None:
    """The terms of nodes are alternatives: each gets the node that is to be avoided."""
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": zones}}}

    made = _pod(place=Place(avoid="node-7"), affinity=affinity)["spec"]["affinity"]

    avoided = {"key": "metadata.name", "operator": "NotIn", "values": ["node-7"]}
    terms = made["nodeAffinity"][required]["nodeSelectorTerms"]
    assert terms == [{**zone, "matchFields": [avoided]} for zone in zones]
    assert _pod(affinity=affinity)["spec"]["affinity"] == affinity


def test_a_round_that_was_frozen_with_fields_of_its_own() -> None:
    """An earlier release had its own subset of a pod's fields; the pods of its rounds stay as they are."""
    made_of = snapshot()
    resolved = json.loads(made_of.data["resolved.yaml"])
    resolved["spec"]["pod"] = {
        "directory": "/runs/job",
        "image": "localhost/trainer:dev",
        "labels": {"team": "vision"},
        "nodeSelector": {"zone": "a"},
        "fsGroup": 2000,
        "env": [{"name": "A", "value": "b"}],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs", "readOnly": False}}],
        "volumeMounts": [{"name": "runs", "mountPath": "/runs", "readOnly": False}],
        "terminationGracePeriod": "1m",
    }
    job = asking(
        manifest(),
        agent={"env": [{"name": "A", "value": "b"}]},
        nodeSelector={"zone": "a"},
        securityContext={"fsGroup": 2000},
        terminationGracePeriodSeconds=60,
    )
    job["spec"]["pod"]["template"]["metadata"] = {"labels": {"team": "vision"}}

    old, new = read_snapshot({**made_of.data, "resolved.yaml": json.dumps(resolved)}), snapshot(job)

    first, second = (pod_manifest(seen(begun(), made_of=each), "0-1", Place()) for each in (old, new))
    assert first == second


def test_children(golden: Golden) -> None:
    """The objects beside the pods. The tokens are of a key of zeros."""
    observed = seen(begun())
    made = [child.manifest for child in children(observed, "shardwise-system", SETTINGS.tokens)]
    made.append(secret_manifest(observed, SETTINGS.tokens))

    golden("children.yaml", yaml.safe_dump_all(made, sort_keys=False))


def test_the_pod_of_a_plan(golden: Golden) -> None:
    """Of a class that needs privileges, places and chips: a pod that has none of them. Its tokenizer is a file."""
    job = manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x4"}, preflight="plan")
    job["spec"]["training"]["data"]["tokenizer"] = "/runs/tokenizer.json"
    job["spec"]["training"]["model"]["vocabSize"] = 512
    job["spec"]["pod"]["template"]["metadata"] = {"labels": {"team": "vision"}}
    agent = {
        "resources": {"requests": {"cpu": "100"}},
        "env": [{"name": "HF_HOME", "value": "/runs/hub"}],
        "envFrom": [{"secretRef": {"name": "bucket", "optional": False}}],
        "imagePullPolicy": "Always",
    }
    asking(
        job,
        agent=agent,
        nodeSelector={"cloud.google.com/gke-spot": "true"},
        tolerations=[{"key": "cloud.google.com/gke-spot", "operator": "Exists"}],
        imagePullSecrets=[{"name": "registry"}],
        serviceAccountName="trainer",
    )
    made_of = snapshot(job)
    state = begun(hosts=made_of.hosts)
    observed = seen(replace(state, attempts={**state.attempts, "plan": 2}), made_of=made_of)
    made = plan_manifest(observed, NO_DEFAULTS)

    golden("plan.yaml", yaml.safe_dump(made, sort_keys=False))


def test_a_plan_that_reads_no_file_has_no_volume_of_the_job() -> None:
    """Nor its variables, which may be secrets: the job and the class are all that it needs."""
    job = asking(manifest(preflight="plan"), agent={"envFrom": [{"secretRef": {"name": "bucket"}}]})
    state = begun()
    observed = seen(replace(state, attempts={**state.attempts, "plan": 0}), made_of=snapshot(job))
    made = plan_manifest(observed, NO_DEFAULTS)

    (container,) = made["spec"]["containers"]
    assert {volume["name"] for volume in made["spec"]["volumes"]} == {
        mount["name"] for mount in container["volumeMounts"]
    }
    assert not [volume["name"] for volume in made["spec"]["volumes"] if not volume["name"].startswith("shardwise-")]
    assert "envFrom" not in container


def test_restricted_pods_keep_to_the_level() -> None:
    """What PodSecurity's restricted level asks for is there, and the root file system is read-only."""
    spec = _pod()["spec"]

    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_the_job_goes_over_its_class() -> None:
    """Variables of the job win where both have one; selectors and tolerations are added."""
    hardware = {"accelerator": "tpu-v5e", "topology": "4x4"}
    job = manifest(hardware=hardware)
    job["spec"]["pod"]["template"]["metadata"] = {"labels": {"team": "vision"}}
    asking(
        job,
        agent={"env": [{"name": "LD_LIBRARY_PATH", "value": "/mine"}]},
        nodeSelector={"cloud.google.com/gke-spot": "true"},
        tolerations=[{"key": "cloud.google.com/gke-spot", "operator": "Exists"}],
    )
    made_of = snapshot(job)

    made = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), "0-0", Place())

    assert made["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert made["spec"]["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert [each["key"] for each in made["spec"]["tolerations"]][2:] == ["google.com/tpu", "cloud.google.com/gke-spot"]
    assert {"name": "LD_LIBRARY_PATH", "value": "/mine"} in made["spec"]["containers"][0]["env"]
    assert made["metadata"]["labels"]["team"] == "vision"


@pytest.mark.parametrize("effect", [{}, {"effect": "NoExecute"}])
def test_a_toleration_of_every_taint_keeps_no_pod_on_a_lost_node(effect: dict[str, str]) -> None:
    """Of the tolerations that fit a taint the cluster takes the first: ours, half a minute."""
    first, second, *rest = _pod(tolerations=[{"operator": "Exists", **effect}])["spec"]["tolerations"]

    assert [each["tolerationSeconds"] for each in (first, second)] == [30, 30]
    assert rest == [{"operator": "Exists", **effect}]


def test_a_job_may_say_how_long_a_lost_node_is_waited_for() -> None:
    """By the taint's name, for NoExecute; what only lets a pod be scheduled says nothing of that."""
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    schedule = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"}

    ours, *asked = _pod(tolerations=[own, schedule])["spec"]["tolerations"]

    assert (ours["key"], ours["tolerationSeconds"]) == ("node.kubernetes.io/unreachable", 30)
    assert asked == [own, schedule]


def test_a_selector_against_the_class_is_refused() -> None:
    """By its key, with what the class asks for; the same value says nothing new."""
    job = manifest(hardware={"accelerator": "tpu-v5e", "topology": "4x4"})
    snapshot(asking(job, nodeSelector={"cloud.google.com/gke-tpu-topology": "4x4"}))
    asking(job, nodeSelector={"cloud.google.com/gke-tpu-topology": "2x4"})

    with pytest.raises(JobError, match=r'nodeSelector\.cloud.*given "2x4", expected "4x4", which tpu-v5e asks for'):
        snapshot(job)


def test_a_job_that_was_frozen_with_another_selector_keeps_to_its_class() -> None:
    """A class says on which nodes its pods may be privileged: no job takes them elsewhere."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5e", "topology": "4x4"}))
    template = {"spec": {"nodeSelector": {"cloud.google.com/gke-tpu-topology": "1x1", "zone": "a"}}}
    pod = made_of.pod.model_copy(update={"template": template})
    spec = made_of.job.spec.model_copy(update={"pod": pod})
    bent = replace(made_of, job=made_of.job.model_copy(update={"spec": spec}))

    made = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=bent), "0-0", Place())

    assert made["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert made["spec"]["nodeSelector"]["zone"] == "a"


def test_devices_are_the_class_s() -> None:
    """A pod asks for its host's chips, whatever the job asks for of cpu and memory."""
    observed = _two_slices("tpu-v5p")

    resources = pod_manifest(observed, "0-0", Place())["spec"]["containers"][0]["resources"]

    least = {"cpu": "8", "memory": "16Gi"}
    assert resources == {"requests": {**least, "google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}}


@pytest.mark.parametrize("accelerator", sorted(_TOPOLOGIES.keys() - {"cpu-sim"}))
def test_no_pod_with_devices_is_the_first_to_be_killed(accelerator: str) -> None:
    """A kubelet and a kernel count cpu and memory alone: a pod that asks for neither goes before all others."""
    made = pod_manifest(_two_slices(accelerator), "0-0", Place())

    assert {"cpu", "memory"} <= made["spec"]["containers"][0]["resources"]["requests"].keys()


def test_a_job_s_resources_win_over_what_its_class_asks_for_at_least() -> None:
    """Also where the job says a limit alone: a request above it would be refused."""
    job = manifest(hardware={"accelerator": "tpu-v5e", "topology": "4x4"})
    asking(job, agent={"resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}})
    made_of = snapshot(job)

    made = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), "0-0", Place())

    resources = made["spec"]["containers"][0]["resources"]
    assert resources["requests"] == {"cpu": "2", "google.com/tpu": "4"}
    assert resources["limits"] == {"memory": "4Gi", "google.com/tpu": "4"}


def test_followers_wait_for_their_slice() -> None:
    """Of a class with places, host 0 keeps other slices out, and the others wait until they know where it is."""
    observed = _two_slices("tpu-v5p")

    leader, follower, placed = (
        pod_manifest(observed, host, place)["spec"]
        for host, place in (("1-0", Place()), ("1-1", Place()), ("1-1", Place(pool="pool-a")))
    )

    (term,) = leader["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "cloud.google.com/gke-nodepool"
    assert term["labelSelector"]["matchExpressions"][1]["values"] == [f"{UID}-1"]
    assert "schedulingGates" not in leader
    assert follower["schedulingGates"] == [{"name": "shardwise.dev/slice"}]
    assert "schedulingGates" not in placed
    assert placed["nodeSelector"]["cloud.google.com/gke-nodepool"] == "pool-a"


def test_a_slice_of_one_host_needs_no_place() -> None:
    """Hosts that are slices by themselves may share a pool."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5e", "topology": "2x4", "slices": 2}))

    made = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), "1-0", Place())

    assert "affinity" not in made["spec"]
    assert "schedulingGates" not in made["spec"]


def test_a_node_that_failed_twice_is_avoided() -> None:
    """The pod may go anywhere but there."""
    terms = _pod(place=Place(avoid="node-7"))["spec"]["affinity"]["nodeAffinity"]

    assert "node-7" in str(terms["requiredDuringSchedulingIgnoredDuringExecution"])


def test_a_queue_says_where_its_pods_go() -> None:
    """Beside what class and job ask for: the labels and the tolerations of the flavor, and the place of the rank."""
    domains = tuple({"rack": f"rack-{rank}"} for rank in range(2))
    taint = {"key": "spot", "operator": "Exists"}
    given = Admission(labels={"a": "b"}, node_selector={"pool": "spot"}, tolerations=(taint,), domains=domains)
    queueing = Queueing(queue="team", workload=workload(admitted=True), admission=given)
    made = pod_manifest(seen(begun(), queueing=queueing), "0-1", Place())

    assert made["metadata"]["labels"]["a"] == "b"
    assert made["spec"]["nodeSelector"] == {"pool": "spot", "rack": "rack-1"}
    assert made["spec"]["tolerations"][-1] == taint


def test_of_the_operator_s_namespace_only_its_pods_come_in() -> None:
    """Others may share it; the chart's pods carry these labels, whatever the release is called."""
    (policy,) = [
        child.manifest for child in children(seen(begun()), "shared", SETTINGS.tokens) if child.kind == NETWORK_POLICIES
    ]

    (operator,) = policy["spec"]["ingress"][1]["from"]
    assert operator == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shared"}},
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": "shardwise", "app.kubernetes.io/component": "operator"}
        },
    }


def test_without_a_policy_a_round_is_made_all_the_same() -> None:
    """Where a namespace has one policy for all of its jobs."""
    with_it, without = (
        {child.kind for child in children(seen(begun()), "shared", SETTINGS.tokens, policy=it)} for it in (True, False)
    )

    assert with_it - without == {NETWORK_POLICIES}


def test_ranks_are_unique_and_in_order() -> None:
    """Rank = slice x hosts + host, over all slices."""
    observed = _two_slices("tpu-v5p")

    ranks = [
        next(each["value"] for each in _env(observed, host) if each["name"] == "SHARDWISE_POD_RANK")
        for host in observed.hosts
    ]

    assert ranks == [str(rank) for rank in range(8)]


def test_pods_know_which_contract_they_are_made_by() -> None:
    """By a variable, so that an image that knows another one can say so."""
    assert {"name": "SHARDWISE_POD_CONTRACT", "value": CONTRACT} in _env(_two_slices("cpu-sim"), "0-1")


def test_a_round_is_frozen_as_it_was() -> None:
    """What is read back from the ConfigMap is what the round was made of."""
    for accelerator in _TOPOLOGIES:
        made_of = _two_slices(accelerator).made_of
        assert made_of is not None

        assert read_snapshot(made_of.data) == made_of


def test_what_another_release_has_frozen_is_read() -> None:
    """Fields that it has added are left out, and its rules were others: the pods of the round run by it already."""
    made_of = _two_slices("tpu-v5p").made_of
    assert made_of is not None
    job, machine = made_of.data["resolved.yaml"], made_of.data["class.yaml"]
    newer = {
        **made_of.data,
        "resolved.yaml": job.replace('"training": {', '"weather": {"sun": 1}, "training": {"mood": "good", '),
        "class.yaml": machine.replace("spec:\n", "spec:\n  colour: red\n"),
    }
    bent = job.replace('"sequences": 1024', '"sequences": 1023')

    assert newer["resolved.yaml"].count("mood") == newer["class.yaml"].count("colour") == 1
    assert read_snapshot(newer) == made_of
    assert parse_document(job, source="") == Document(data=json.loads(job), places=ANY)  # as earlier ones read it
    assert read_snapshot({**newer, "resolved.yaml": dump(made_of.job)}) == made_of  # as they have written it
    assert read_snapshot({**newer, "resolved.yaml": bent}).job.spec.training.batch.sequences == 1023


def test_the_pods_read_what_the_author_wrote() -> None:
    """A default that this release adds would be an unknown field to an older image, and so would a field of `pod`."""
    job = manifest(deadline="7d")
    written = yaml.safe_load(snapshot(job).data["job.yaml"])

    assert written["spec"] == {name: value for name, value in job["spec"].items() if name != "pod"}
    assert resolve(loads(snapshot(job).data["job.yaml"])).spec.training == snapshot(job).job.spec.training


def test_tokens_differ_by_use_and_job() -> None:
    """Who knows one token knows no other."""
    tokens = Tokens(b"k" * 32)

    known = {tokens.gang("a"), tokens.status("a"), tokens.gang("b"), tokens.status("b")}

    assert len(known) == 4
    assert all(len(token) == 64 for token in known)
    assert repr(tokens) == "Tokens()"


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    """A key that can be guessed opens every job."""
    path = tmp_path / "key"
    path.write_bytes(b"short\n")
    with pytest.raises(ValueError, match="given 5 bytes, expected a key of at least 32"):
        read_key(path)


def _env(observed: Observed, host: str) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = pod_manifest(observed, host, Place())["spec"]["containers"][0]["env"]
    return env


def test_a_claim_of_devices_goes_to_the_trainer() -> None:
    """A template may name a claim, as of a ComputeDomain, beside the class's devices; its variable is the job's."""
    claims = [{"name": "channel", "resourceClaimTemplateName": "domain-channel"}]
    variable = {"name": "NCCL_MNNVL_ENABLE", "value": "1"}
    job = asking(
        manifest(hardware={"accelerator": "gke-gpu-gb200", "topology": "2x4"}),
        agent={"resources": {"claims": [{"name": "channel"}]}, "env": [variable]},
        resourceClaims=claims,
    )
    made_of = snapshot(job)
    pod = pod_manifest(seen(begun(hosts=made_of.hosts), made_of=made_of), "0-0", Place())
    (agent,) = [each for each in pod["spec"]["containers"] if each["name"] == "agent"]

    assert pod["spec"]["resourceClaims"] == claims
    assert agent["resources"]["claims"] == [{"name": "channel"}]
    assert agent["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert [each for each in agent["env"] if each["name"] == variable["name"]] == [variable]
