"""The work of the chart's hooks: its Jobs run `python -m shardwise_operator.hooks`.

    crds FOLDER             before an upgrade, at which Helm leaves CRDs alone; newer ones than the chart's are left
    remove-policy NAME      before an uninstall: Helm would remove the classes first, and then every job is refused
    test NAMESPACE          `helm test`: a wrong job is refused, and the operator takes up a right one

Each Job has a role of its own, so that the operator's role needs no rights to CRDs or policies.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import orjson
import typer

from shardwise.protocol.pods import AGENT
from shardwise_operator.runtime.connection import connect
from shardwise_operator.runtime.errors import ApiError, KubernetesError, NotFoundError
from shardwise_operator.runtime.kinds import CRDS, POLICIES, POLICY_BINDINGS, TRAINING_JOBS, Object, condition_of
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api

_FIELD_MANAGER = "helm"  # Helm applies the CRDs at an install, and refuses to if another manager owns their fields
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_TEST_JOB = "shardwise-helm-test"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="What the chart's hooks do.")


class HookError(Exception):
    """The cluster does not accept what the hook brings."""


def install_crds(api: Api, folder: Path) -> dict[str, list[str]]:
    """Server-side apply every CRD of `folder` but those that are older than the cluster's; wait until all are served.

    Returns:
        By their names, what only the cluster's has; where that is something, the CRD was left as it is.

    Raises:
        HookError: the folder has none, or the server does not serve one within a minute.
        KubernetesError: the server refused one, or did not answer.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise HookError(f"{folder} has no *.json: expected the CRDs of the chart there")
    newer = {}
    for file in files:
        crd = orjson.loads(file.read_bytes())
        name = crd["metadata"]["name"]
        newer[name] = _only_in_newer(_installed(api, name), crd)
        if not newer[name]:
            api.apply(CRDS, crd)
    _wait(
        lambda: all(condition_of(api.get(CRDS, "", name), "Established").get("status") == "True" for name in newer),
        f"not served: one of {', '.join(newer)}; `kubectl describe crd` shows the reason in its conditions",
    )
    return newer


def remove_policy(api: Api, name: str) -> None:
    """Delete the admission policy of this name, and before it its binding; a missing one is no error."""
    for kind in (POLICY_BINDINGS, POLICIES):
        with suppress(NotFoundError):
            api.delete(kind, "", name, uid=api.get(kind, "", name)["metadata"]["uid"])


def try_install(api: Api, namespace: str, *, managed_by: str = "", policy: bool = True) -> None:
    """Apply a suspended job, wait until the operator reports on it, and delete it; first, see a wrong job refused.

    Raises:
        HookError: the wrong job was accepted, or the operator did not report within a minute.
        KubernetesError: the server refused the right job, or did not answer.
    """
    job = _waiting_job(namespace, managed_by)
    if policy:
        _wait(lambda: _refuses(api, job), "a topology that does not exist was not refused by the admission policy")
    uid = api.create(TRAINING_JOBS, job)["metadata"]["uid"]
    try:
        _wait(
            lambda: api.get(TRAINING_JOBS, namespace, _TEST_JOB).get("status", {}).get("phase") == "Suspended",
            f"no operator has looked at the job {_TEST_JOB} in {namespace}; its log says why",
        )
    finally:
        api.delete(TRAINING_JOBS, namespace, _TEST_JOB, uid=uid)


@app.command("crds")
def crds_command(folder: Annotated[Path, typer.Argument(help="The folder with one CRD in each *.json.")]) -> None:
    """Apply the CRDs of a folder and wait until they are served."""
    for name, newer in install_crds(_api(), folder).items():
        kept = f"left as it is: {name}, which is newer: an older one would take {', '.join(newer)} out of what has it"
        print(kept if newer else f"applied: {name}")  # noqa: T201  the Job's log


@app.command("remove-policy")
def policy_command(name: Annotated[str, typer.Argument(help="The name of the policy and of its binding.")]) -> None:
    """Delete an admission policy and its binding."""
    remove_policy(_api(), name)
    print(f"removed: the admission policy {name} and its binding")  # noqa: T201  the Job's log


@app.command("test")
def try_command(
    namespace: Annotated[str, typer.Argument(help="Where the test's job is made; the operator must watch it.")],
    managed_by: Annotated[str, typer.Option(help="The job's spec.managedBy; empty, none.")] = "",
    policy: Annotated[bool, typer.Option(help="Whether the admission policy is installed.")] = True,  # noqa: FBT002  typer
) -> None:
    """See a wrong job refused, and a right one taken up by the operator."""
    try_install(_api(), namespace, managed_by=managed_by, policy=policy)
    print("a wrong job is refused, and the operator answers" if policy else "the operator answers")  # noqa: T201  the log


def _installed(api: Api, name: str) -> Object:
    """Return the cluster's CRD of this name; empty, if it has none."""
    with suppress(NotFoundError):
        return api.get(CRDS, "", name)
    return {}


def _only_in_newer(installed: Object, crd: Object) -> list[str]:
    """Return what the installed CRD knows and the other does not, unless the other knows something more too.

    From release to release a CRD only gains fields and values. An older one in its place would drop them from the
    objects that have them, at their next write.
    """
    has, brings = ({*_known_of(each)} for each in (installed, crd))
    return sorted(has - brings) if brings < has else []


def _known_of(crd: Object) -> Iterator[str]:
    for version in crd.get("spec", {}).get("versions", ()):
        yield from _known(version["schema"]["openAPIV3Schema"], version["name"])


def _known(schema: Object, path: str) -> Iterator[str]:
    """Yield the path of a schema and all below it, with the values of a choice."""
    yield path
    yield from (f"{path}={value}" for value in schema.get("enum", ()))
    for field, inner in schema.get("properties", {}).items():
        yield from _known(inner, f"{path}.{field}")
    for rest in ("items", "additionalProperties"):
        if isinstance(schema.get(rest), dict):
            yield from _known(schema[rest], f"{path}.*")


def _waiting_job(namespace: str, managed_by: str) -> Object:
    """Return a suspended job, for which nothing runs."""
    training = {
        "model": {"preset": "tiny"},
        "data": {"train": [{"name": "text", "paths": ["README.md"]}]},
        "batch": {"sequences": 1},
        "optimizer": {"name": "adamw", "learningRate": 1e-3},
        "steps": 1,
    }
    containers = [{"name": AGENT, "volumeMounts": [{"name": "runs", "mountPath": "/runs"}]}]
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    spec: Object = {
        "hardware": {"accelerator": "cpu-sim", "topology": "1x1"},
        "training": training,
        "suspend": True,
        "pod": {
            "directory": f"/runs/{_TEST_JOB}",
            "template": {"spec": {"containers": containers, "volumes": volumes}},
        },
    } | ({"managedBy": managed_by} if managed_by else {})
    return TRAINING_JOBS.manifest({"name": _TEST_JOB, "namespace": namespace}, spec=spec)


def _refuses(api: Api, job: Object) -> bool:
    """Return whether the server refuses the job on too many hosts; a new policy takes a moment to be in force."""
    hardware = job["spec"]["hardware"] | {"topology": "9999x1"}
    try:
        made = api.create(TRAINING_JOBS, job | {"spec": job["spec"] | {"hardware": hardware}})
    except ApiError as error:
        return "9999x1" in error.message
    api.delete(TRAINING_JOBS, made["metadata"]["namespace"], _TEST_JOB, uid=made["metadata"]["uid"])
    return False


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while not done():
        if time.monotonic() > until:
            raise HookError(f"after {_WAIT_SECONDS:g} s: {otherwise}")
        time.sleep(_POLL_SECONDS)


def _api() -> Api:
    return Api(connect(), Metrics(), limiter=Limiter(20, 20), field_manager=_FIELD_MANAGER)


def main() -> None:
    """Run one hook; what the cluster refuses ends it with 1 and the reason."""
    try:
        app()
    except (HookError, KubernetesError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  the Job's log
        sys.exit(1)


if __name__ == "__main__":
    main()
