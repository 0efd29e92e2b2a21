"""The rules across fields of a job's pods, in CEL: `shardwise.job.rules.pod`, and that a cluster needs `pod` at all.

CEL sees only what the schema declares; the operator checks every job again by the Python rules before it makes pods.
"""

from functools import partial

from shardwise.job.rules.pod import CONTAINERS, OWN_MARKS, OWN_MOUNTS, OWN_VOLUMES, REFUSED
from shardwise.protocol.pods import AGENT, OWN_VARIABLE_PREFIXES
from shardwise_operator.api.cel import Rule, goes_up, quoted

_TEMPLATE = "spec.pod.template"
_BELOW = "({path} == m.mountPath || {path}.startsWith(m.mountPath + '/'))"
_SHARED = (
    "(has(v.persistentVolumeClaim) && !v.persistentVolumeClaim.?readOnly.orValue(false)"
    " || has(v.csi) && !v.csi.?readOnly.orValue(false))"
)


def _is_shared(pod: str, path: str) -> str:
    """Return the test of whether a path lies below a mount of a volume that all hosts see and may write to."""
    spec, below = f"{pod}.template.spec", _BELOW.format(path=path)
    volume = f"{spec}.volumes.exists(v, v.name == m.name && {_SHARED})"
    return (
        f"(has({pod}.template) && has({spec}) && has({spec}.volumes) && has({spec}.containers) && "
        f"!{goes_up(path)} && {spec}.containers.exists(c, c.name == '{AGENT}' && has(c.volumeMounts) && "
        f"c.volumeMounts.exists(m, {below} && !m.?readOnly.orValue(false) && {volume})))"
    )


_SHARED_WORDS = (
    "a folder below a mount of a volume that all hosts share and may write to (persistentVolumeClaim or csi)"
)
_PATH, _STORE = "self.training.checkpoint.path", "self.training.data.store"


def _refused(group: str, field: str, value: object, reason: str) -> Rule:
    """Refuse a field of the template, with any value or with this one."""
    there = (
        "" if value is None else f" || self.{field} != {repr(value) if isinstance(value, str) else str(value).lower()}"
    )
    return Rule(
        at=f"{_TEMPLATE}.{group}",
        holds=f"!has(self.{field}){there}",
        message=f"expected it left out: {reason}",
        field=f".{field}",
    )


_of_spec = partial(Rule, at="spec")
_of_container = partial(Rule, at=f"{_TEMPLATE}.spec.containers.*")

POD_RULES = (
    _of_spec(
        holds="has(self.pod)",
        message="expected pod in a cluster, with at least directory and the volume that it is on",
    ),
    _of_spec(
        holds="!self.?training.?mesh.?replica.hasValue() "
        "|| self.training.mesh.replica % self.hardware.?slices.orValue(1) == 0",
        message="expected a replica that is a multiple of hardware.slices",
        field=".training.mesh.replica",
    ),
    _of_spec(
        holds="!self.?recovery.?minSlices.hasValue() || self.recovery.minSlices <= self.hardware.?slices.orValue(1)",
        message="expected a minSlices of at most hardware.slices",
        field=".recovery.minSlices",
    ),
    Rule(
        at="spec.pod",
        holds="self.directory.contains('://') || " + _is_shared("self", "self.directory"),
        message=f"expected gs://, s3:// or {_SHARED_WORDS}",
        field=".directory",
    ),
    _of_spec(
        holds="!has(self.training) || !has(self.pod) || !self.pod.directory.contains('://') || "
        "self.?training.?checkpoint.?path.hasValue() && "
        f"({_PATH}.startsWith('gs://') || {_PATH}.startsWith('s3://'))",
        message="expected a folder on a volume: in a bucket only the run directory of a job can lie that has its "
        "checkpoints there (training.checkpoint.path)",
        field=".pod.directory",
    ),
    _of_spec(
        holds=f"!self.?training.?checkpoint.?path.hasValue() || {_PATH}.contains('://') || !has(self.pod) || "
        + _is_shared("self.pod", _PATH),
        message=f"expected a URL, or {_SHARED_WORDS}",
        field=".training.checkpoint.path",
    ),
    _of_spec(
        holds=f"!self.?training.?data.?store.hasValue() || {_STORE}.contains('://') || !has(self.pod) || "
        + _is_shared("self.pod", _STORE),
        message=f"expected a URL, or {_SHARED_WORDS}",
        field=".training.data.store",
    ),
    *(_refused(*row) for row in REFUSED),
    *(
        Rule(
            at=f"{_TEMPLATE}.metadata.{group}",
            holds=f"self.all(key, !key.startsWith('{OWN_MARKS}'))",
            message=f"expected keys that do not begin with {OWN_MARKS}",
        )
        for group in ("labels", "annotations")
    ),
    Rule(
        at=f"{_TEMPLATE}.spec.volumes.*",
        holds=f"!{quoted(OWN_VOLUMES)}.exists(own, self.name.startsWith(own))",
        message=f"expected a name that does not begin with {', '.join(OWN_VOLUMES)}",
        field=".name",
    ),
    *(
        Rule(
            at=f"{_TEMPLATE}.spec",
            holds=f"!has(self.{group}) || self.{group}.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, "
            "has(self.volumes) && self.volumes.exists(v, v.name == m.name)))",
            message="expected every mount to name one of spec.pod.template.spec.volumes",
            field=f".{group}",
        )
        for group in CONTAINERS
    ),
    Rule(
        at=f"{_TEMPLATE}.spec.initContainers.*",
        holds=f"self.name != '{AGENT}'",
        message="expected another name: the trainer's container is one of spec.containers",
        field=".name",
    ),
    _of_container(
        holds=f"self.name != '{AGENT}' || "
        + " && ".join(f"!has(self.{field})" for field in ("image", "command", "args", "ports", "securityContext")),
        message=f"expected no image, command, args, ports or securityContext of the container {AGENT}: "
        "the image is spec.pod.image, and the rest the operator's",
    ),
    _of_container(
        holds=f"self.name != '{AGENT}' || !has(self.env) || "
        f"self.env.all(e, !{quoted(OWN_VARIABLE_PREFIXES)}.exists(own, e.name.startsWith(own)))",
        message=f"expected names that do not begin with {', '.join(OWN_VARIABLE_PREFIXES)}: "
        "Shardwise sets these itself",
        field=".env",
    ),
    _of_container(
        holds=f"self.name != '{AGENT}' || !has(self.volumeMounts) || self.volumeMounts.all(m, "
        f"!{quoted(OWN_MOUNTS)}.exists(own, m.mountPath == own || m.mountPath.startsWith(own + '/') "
        f"|| own.startsWith(m.mountPath + '/')) && !{goes_up('m.mountPath')})",
        message=f"expected folders apart from {', '.join(OWN_MOUNTS)}, without '..'",
        field=".volumeMounts",
    ),
)
