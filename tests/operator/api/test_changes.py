"""What may change of a job that is there: the identity table, as the API server holds it."""

import uuid
from collections.abc import Iterator

import pytest
from tests.cluster.client import Client, RefusedError
from tests.operator.api.jobs import JOBS, job

CATALOG = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs/shardwise"
MERGE = "application/merge-patch+json"
CHAT = {"name": "text", "paths": ["README.md"], "weight": 1, "chatTemplate": "chatml"}

IDENTITY = [
    ({"training": {"seed": 1}}, "training.seed is part of what the run is"),
    ({"training": {"model": {"layers": 3}}}, "training.model.layers is part"),
    ({"training": {"model": {"preset": "gpt2-small"}}}, "training.model.preset is part"),
    ({"training": {"model": {"dropout": {"embed": 0.1}}}}, "training.model.dropout.embed is part"),
    ({"training": {"batch": {"sequences": 32}}}, "training.batch.sequences is part"),
    ({"training": {"optimizer": {"name": "lion"}}}, "training.optimizer.name is part"),
    ({"training": {"optimizer": {"clipNorm": 2.0}}}, "training.optimizer.clipNorm is part"),
    ({"training": {"data": {"tokenizer": "t.json"}}}, "training.data.tokenizer is part"),
    ({"training": {"data": {"train": [{"name": "other", "paths": ["a"]}]}}}, "training.data.train.*.name is part"),
    ({"training": {"data": {"attendAcross": "document", "train": [CHAT]}}}, "training.data.train.*.chatTemplate"),
    ({"training": {"data": {"train": [CHAT | {"leaveOut": [3]}]}}}, "training.data.train.*.leaveOut"),
    ({"training": {"optimizer": {"groups": [{"match": "*"}]}}}, "training.optimizer.groups.*.match, "),
    ({"training": {"precision": {"compute": "bfloat16"}}}, "training.precision.compute is part"),
    ({"training": {"loss": {"zLoss": 0.1}}}, "training.loss.zLoss is part"),
    ({"training": {"xlaFlags": ["--xla_cpu_enable_fast_math=true"]}}, "training.xlaFlags is part"),
    ({"managedBy": "other"}, "managedBy never changes"),
]
SHAPE = [
    {"hardware": {"topology": "1x4"}},
    {"training": {"mesh": {"tensor": 1}}},
    {"training": {"mesh": {"dataInner": 2}}},
    {"training": {"xlaFlags": ["--xla_gpu_enable_latency_hiding_scheduler=true"]}},
    {"training": {"steps": 200}},
    {"training": {"evaluation": {"everySteps": 2, "sets": [{"name": "books", "paths": ["a"]}]}}},
    {
        "training": {
            "evaluation": {"sets": [{"name": "q", "paths": ["a"], "questions": True, "chatTemplate": "chatml"}]}
        }
    },
    {"training": {"checkpoint": {"everySteps": 10}}},
    {"training": {"batch": {"microbatches": 4}}},
    {"training": {"data": {"train": [{"name": "text", "paths": ["moved.txt"], "weight": 1}]}}},
    {"recovery": {"restarts": {"failure": 9}}},
    {"pod": {"image": "example.com/other:1"}},
]


@pytest.fixture
def url(shardwise_api: Client) -> Iterator[str]:
    """Return the address of a new job that runs."""
    manifest = job(f"metadata.name=t-{uuid.uuid4().hex[:8]}")
    shardwise_api.request("POST", JOBS, manifest)
    address = f"{JOBS}/{manifest['metadata']['name']}"
    yield address
    shardwise_api.request("DELETE", address)


@pytest.mark.parametrize(("spec", "said"), IDENTITY)
def test_identity_never_changes(shardwise_api: Client, url: str, spec: dict[str, object], said: str) -> None:
    """Neither a running nor a suspended job becomes another run; the refusal names the field."""
    for suspend in (False, True):
        with pytest.raises(RefusedError) as refused:
            shardwise_api.request("PATCH", url, {"spec": {**spec, "suspend": suspend}}, MERGE)
        assert said in str(refused.value)


@pytest.mark.parametrize("spec", SHAPE)
def test_shape_changes_only_under_suspend(shardwise_api: Client, url: str, spec: dict[str, object]) -> None:
    """Where and how fast a job runs may change while it is suspended, or in the change that suspends or resumes it."""
    with pytest.raises(RefusedError, match="set suspend: true first"):
        shardwise_api.request("PATCH", url, {"spec": spec}, MERGE)
    shardwise_api.request("PATCH", url, {"spec": {"suspend": True}}, MERGE)
    shardwise_api.request("PATCH", f"{url}?dryRun=All", {"spec": spec}, MERGE)
    shardwise_api.request("PATCH", url, {"spec": {**spec, "suspend": False}}, MERGE)


@pytest.mark.parametrize(
    "spec",
    [
        {"deadline": "1d"},
        {"ttlAfterFinished": "1h"},
        {"preflight": "plan"},
        {"suspend": True},
        {"training": {"seed": 0}},
        {"training": {"model": {"initStd": 0.02}}},
    ],
)
def test_the_rest_changes_at_any_time(shardwise_api: Client, url: str, spec: dict[str, object]) -> None:
    """Deadline, time to live, preflight and suspend change in a running job, a default in a suspended one."""
    shardwise_api.request(
        "PATCH", url, {"spec": {**spec, "suspend": "training" in spec or spec.get("suspend", False)}}, MERGE
    )


def test_null_is_a_value_of_clip_norm(shardwise_api: Client) -> None:
    """A job without clipping is kept as one, and cannot be given a norm later."""
    manifest = job(f"metadata.name=t-{uuid.uuid4().hex[:8]}", "training.optimizer.clipNorm=null")
    made = shardwise_api.request("POST", JOBS, manifest)
    assert made["spec"]["training"]["optimizer"]["clipNorm"] is None
    made["spec"]["suspend"] = True
    shardwise_api.request("PUT", f"{JOBS}/{manifest['metadata']['name']}?dryRun=All", made)
    made["spec"]["training"]["optimizer"]["clipNorm"] = 1.0
    with pytest.raises(RefusedError, match=r"training\.optimizer\.clipNorm is part"):
        shardwise_api.request("PUT", f"{JOBS}/{manifest['metadata']['name']}", made)


def test_only_options_that_change_bits_are_held(shardwise_api: Client) -> None:
    """Options that change bits may be put in another order, beside others that only schedule, and none may go."""
    flags = ["--xla_cpu_enable_fast_math=true", "--xla_allow_excess_precision=false"]
    manifest = job(f"metadata.name=t-{uuid.uuid4().hex[:8]}", f"training.xlaFlags={flags}")
    made = shardwise_api.request("POST", JOBS, manifest)
    made["spec"]["suspend"] = True
    url = f"{JOBS}/{manifest['metadata']['name']}"
    made["spec"]["training"]["xlaFlags"] = [flags[1], "--xla_dump_to=/x", flags[0]]
    shardwise_api.request("PUT", f"{url}?dryRun=All", made)
    made["spec"]["training"]["xlaFlags"] = flags[:1]
    with pytest.raises(RefusedError, match=r"training\.xlaFlags is part"):
        shardwise_api.request("PUT", url, made)
    shardwise_api.request("DELETE", url)


def test_a_class_that_goes_locks_no_running_job(shardwise_api: Client, url: str) -> None:
    """The policy looks at hardware that is new only: a job of a class that was taken away can still be suspended."""
    whole = shardwise_api.request("GET", CATALOG)["spec"]
    shardwise_api.request("PATCH", CATALOG, {"spec": {"classes": []}}, MERGE)
    try:
        shardwise_api.request("PATCH", url, {"spec": {"suspend": True}}, MERGE)
    finally:
        shardwise_api.request("PATCH", CATALOG, {"spec": whole}, MERGE)


def test_status_is_a_part_of_its_own(shardwise_api: Client, url: str) -> None:
    """A person cannot write status, and the operator's status write changes nothing else."""
    shardwise_api.request("PATCH", url, {"status": {"phase": "Complete"}}, MERGE)
    assert "status" not in shardwise_api.request("GET", url)

    shardwise_api.request("PATCH", f"{url}/status", {"status": {"phase": "Running"}, "spec": {"suspend": True}}, MERGE)
    found = shardwise_api.request("GET", url)
    assert found["status"] == {"phase": "Running"}
    assert "suspend" not in found["spec"]
    assert found["metadata"]["generation"] == 1
