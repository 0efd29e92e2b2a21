"""The rules across fields of a job's pods, in CEL: `shardwise.job.rules.pod`, and that a cluster needs `pod` at all."""

from shardwise.job.pods import OWN_VARIABLE_PREFIXES
from shardwise.job.rules.pod import OWN_MARKS, OWN_MOUNTS
from shardwise_operator.api.cel import Rule, quoted

_BELOW = "({path} == m.mountPath || {path}.startsWith(m.mountPath + '/'))"
_SHARED = (
    "(has(v.persistentVolumeClaim) && !v.persistentVolumeClaim.?readOnly.orValue(false)"
    " || has(v.csi) && !v.csi.?readOnly.orValue(false))"
)


def _is_shared(pod: str, path: str) -> str:
    """Whether a path lies below a mount of a volume that all hosts see and may write to."""
    below = _BELOW.format(path=path)
    volume = f"{pod}.volumes.exists(v, v.name == m.name && {_SHARED})"
    return (
        f"(has({pod}.volumes) && has({pod}.volumeMounts) && !{path}.contains('..') && "
        f"{pod}.volumeMounts.exists(m, {below} && !m.?readOnly.orValue(false) && {volume}))"
    )


_SHARED_WORDS = (
    "a folder below a mount of a volume that all hosts share and may write to (persistentVolumeClaim or csi)"
)
_SOURCES = ("persistentVolumeClaim", "configMap", "secret", "emptyDir", "csi")
_PATH = "self.training.checkpoint.path"

POD_RULES = (
    Rule(
        at="spec",
        holds="has(self.pod)",
        message="expected pod in a cluster, with at least directory and the volume that it is on",
    ),
    Rule(
        at="spec",
        holds="!self.training.?mesh.?replica.hasValue() "
        "|| self.training.mesh.replica % self.hardware.?slices.orValue(1) == 0",
        message="expected a replica that is a multiple of hardware.slices",
        field=".training.mesh.replica",
    ),
    Rule(
        at="spec.pod",
        holds=_is_shared("self", "self.directory"),
        message=f"expected {_SHARED_WORDS}",
        field=".directory",
    ),
    Rule(
        at="spec",
        holds=f"!self.training.?checkpoint.?path.hasValue() || {_PATH}.contains('://') || !has(self.pod) || "
        + _is_shared("self.pod", _PATH),
        message=f"expected a URL, or {_SHARED_WORDS}",
        field=".training.checkpoint.path",
    ),
    Rule(
        at="spec.pod",
        holds="!has(self.volumeMounts) "
        "|| self.volumeMounts.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        message="expected every mount to name one of volumes",
        field=".volumeMounts",
    ),
    Rule(
        at="spec.pod.volumes.*",
        holds=f"[{', '.join(f'has(self.{source})' for source in _SOURCES)}].filter(there, there).size() == 1",
        message=f"expected exactly one of {', '.join(_SOURCES)}",
    ),
    Rule(
        at="spec.pod.envFrom.*",
        holds="has(self.configMapRef) != has(self.secretRef)",
        message="expected exactly one of configMapRef, secretRef",
    ),
    Rule(
        at="spec.pod.volumeMounts.*",
        holds=f"!{quoted(OWN_MOUNTS)}.exists(own, self.mountPath == own || self.mountPath.startsWith(own + '/') "
        "|| own.startsWith(self.mountPath + '/')) && !self.mountPath.contains('..')",
        message=f"expected a folder apart from {', '.join(OWN_MOUNTS)}",
        field=".mountPath",
    ),
    Rule(
        at="spec.pod.env.*",
        holds=f"!{quoted(OWN_VARIABLE_PREFIXES)}.exists(own, self.name.startsWith(own))",
        message=f"expected a name that does not begin with {', '.join(OWN_VARIABLE_PREFIXES)}: "
        "Shardwise sets these itself",
        field=".name",
    ),
    *(
        Rule(
            at=f"spec.pod.{group}",
            holds=f"self.all(key, !key.startsWith('{OWN_MARKS}'))",
            message=f"expected keys that do not begin with {OWN_MARKS}",
        )
        for group in ("labels", "annotations")
    ),
    Rule(
        at="spec.pod.tolerations.*",
        holds="self.?operator.orValue('Equal') != 'Exists' || self.?value.orValue('') == ''",
        message="expected no value with operator: Exists",
        field=".value",
    ),
    Rule(
        at="spec.pod.tolerations.*",
        holds="has(self.key) || self.?operator.orValue('Equal') == 'Exists'",
        message="expected a key, or operator: Exists",
    ),
)
