"""The kinds of objects that the operator reads or writes, and where the API server keeps them.

An object is the JSON as the server sends it, a plain dict: typed models cost ten times the time and drop fields that
they do not know.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Objects = list[Object]

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""What is raised by reading an object that lacks what its kind seems to promise, or has something else there."""


@dataclass(frozen=True)
class Kind:
    """One kind.

    Attributes:
        group: its API group; empty for the core.
        version: of the group.
        plural: its name in a path.
        kind: its name in an object.
        namespaced: whether its objects are in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or without a name of all; without a namespace, those of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (root + place, self.plural, name, subresource) if part)

    def path_of(self, obj: Object, subresource: str = "") -> str:
        """Return the path of this object."""
        return self.path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"], subresource)

    def manifest(self, metadata: Object, **fields: Any) -> Object:
        """Return an object of this kind, with its `fields` beside the metadata."""
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **fields}

    def reference(self, name: str, uid: str) -> Object:
        """Return how another object names one of this kind."""
        return {"apiVersion": self.api_version, "kind": self.kind, "name": name, "uid": uid}


def condition_of(obj: Object, kind: str) -> Object:
    """Return the condition of this type in the status of an object; {} without one."""
    conditions: Objects = obj.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def field_of(obj: object, *path: str) -> object:
    """Return what lies at a path of an object; None where one of its groups is missing."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def called(obj: Object) -> str:
    """Return what an object is called in a log: its kind, its namespace if it has one, and its name."""
    metadata = obj["metadata"]
    return f"{obj.get('kind', 'object')} {'/'.join(filter(None, (metadata.get('namespace'), metadata['name'])))}"


def timestamp(seconds: float) -> str:
    """Return a time since the epoch as the API server writes it, to the second."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_timestamp(seconds: float) -> str:
    """Return a time since the epoch as the API server takes it too, to the millisecond."""
    written = datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")


def seconds_of(written: str) -> float:
    """Return the time since the epoch that a text has; fractions of a second are read too."""
    return datetime.fromisoformat(written).timestamp()


PODS = Kind("", "v1", "pods", "Pod")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
SECRETS = Kind("", "v1", "secrets", "Secret")
EVENTS = Kind("", "v1", "events", "Event")
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
NETWORK_POLICIES = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES = Kind("coordination.k8s.io", "v1", "leases", "Lease")
TRAINING_JOBS = Kind("shardwise.dev", "v1alpha1", "trainingjobs", "TrainingJob")
ACCELERATOR_CLASSES = Kind("shardwise.dev", "v1alpha1", "acceleratorclasses", "AcceleratorClass", namespaced=False)
ACCELERATOR_CATALOGS = Kind("shardwise.dev", "v1alpha1", "acceleratorcatalogs", "AcceleratorCatalog", namespaced=False)
WORKLOADS = Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
RESOURCE_FLAVORS = Kind("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
WORKLOAD_PRIORITY_CLASSES = Kind(
    "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
PRIORITY_CLASSES = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
GANGS = Kind("scheduling.k8s.io", "v1alpha1", "workloads", "Workload")
CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
_ADMISSION = "admissionregistration.k8s.io"
POLICIES = Kind(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
POLICY_BINDINGS = Kind(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)
