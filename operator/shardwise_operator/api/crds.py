"""The three CRDs, from the types of `shardwise.job`. Nothing here talks to a cluster."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

from shardwise.job.class_rules import FIGURES
from shardwise.job.explain import rows
from shardwise.job.flags import OVERLAP, OVERLAP_WITH_FUSION
from shardwise.job.spec.accelerator import AcceleratorSpec
from shardwise.job.spec.job import JobSpec
from shardwise.protocol.job_status import JobStatus
from shardwise.protocol.pods import AGENT
from shardwise_operator.api.catalog import CatalogSpec
from shardwise_operator.api.cel import Rule, flag_rules, fusing, overlaps
from shardwise_operator.api.immutable import immutability
from shardwise_operator.api.schema import Schema, structural
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS, ACCELERATOR_CLASSES, CRDS, TRAINING_JOBS, Kind

# Name, JSON path below .status, type, priority: 1 is shown by -o wide only.
_JOB_COLUMNS = (
    ("Phase", ".status.phase", "string", 0),
    ("Step", ".status.progress.step", "integer", 0),
    ("Loss", ".status.progress.loss", "string", 0),
    ("Tokens/s", ".status.progress.tokensPerSecond", "string", 0),
    ("MFU", ".status.progress.mfu", "string", 0),
    ("Ckpt", ".status.checkpoint.step", "integer", 0),
    ("Restarts", ".status.restartCount", "integer", 0),
    ("Age", ".metadata.creationTimestamp", "date", 0),
    ("Hosts", ".status.hosts.summary", "string", 1),
    ("ETA", ".status.progress.eta", "string", 1),
    ("Goodput", ".status.goodput", "string", 1),
    ("Reason", ".status.reason", "string", 1),
)
_CLASS_COLUMNS = (
    ("Platform", ".spec.platform", "string", 0),
    ("Description", ".spec.description", "string", 0),
    ("Age", ".metadata.creationTimestamp", "date", 0),
)

_SIDES = "grid.split('x')"
_CHIPS = (
    f"(int({_SIDES}[0]) * ({_SIDES}.size() > 1 ? int({_SIDES}[1]) : 1) * ({_SIDES}.size() > 2 ? int({_SIDES}[2]) : 1))"
)
_FLAGS = "self.flags.map(one, one.flag)"
_of_class = partial(Rule, at="spec")
_CLASS_RULES = (
    _of_class(
        holds="(has(self.machines) && self.machines.size() > 0) != has(self.hosts)",
        message="expected machines with their grids of chips, or hosts with their devices",
    ),
    _of_class(
        holds="(self.?hostPaths.orValue([]).size() == 0 && self.?sidecars.orValue([]).size() == 0) "
        "|| self.?podSecurity.orValue('') == 'privileged'",
        message="expected privileged, which hostPaths and sidecars need",
        field=".podSecurity",
    ),
    Rule(
        at="spec.sidecars.*",
        holds=f"self.name != '{AGENT}'",
        message=f"expected a name apart from {AGENT}, the trainer's container",
        field=".name",
    ),
    Rule(
        at="spec.machines.*",
        holds=f"self.topologies.all(grid, {_CHIPS} % self.chips == 0)",
        message="expected grids of whole machines: the chips of each are a multiple of the machine's",
        field=".topologies",
    ),
    _of_class(
        holds="!has(self.nodeSelector) || self.nodeSelector.all(key, "
        "self.nodeSelector[key].replace('{topology}', '').replace('{machine}', '').matches('^[^{}]*$'))",
        message="expected no placeholder but {topology} and {machine}",
        field=".nodeSelector",
    ),
    Rule(
        at="spec.hosts",
        holds="self.?minDevices.orValue(1) <= self.maxDevices",
        message="expected minDevices of at most maxDevices",
        field=".minDevices",
    ),
    *(
        Rule(
            at=group,
            holds=f"!has(self.{field}) || string(self.{field}).matches('^[0.]*[1-9]')",
            message="expected a quantity above 0",
            field=f".{field}",
        )
        for group, _, field in (f"spec.{path}".rpartition(".") for path in FIGURES)
    ),
    *flag_rules("spec.compiler", _FLAGS, unless="!has(self.flags) || ", field=".flags"),
    Rule(
        at="spec.compiler",
        holds=f"!has(self.flags) || !{overlaps(_FLAGS)} || {fusing(_FLAGS)}.size() == 0",
        message=f"expected options without --{OVERLAP}, which together with another one {OVERLAP_WITH_FUSION}",
        field=".flags",
    ),
)


def crds() -> list[dict[str, Any]]:
    """Return the CRDs."""
    job = _schema(JobSpec, "A training job.", _job_notes(), status=JobStatus)
    _attach(job, [immutability()])
    machine = _schema(AcceleratorSpec, "A type of machine that jobs can ask for by name.", {})
    _attach(machine, _CLASS_RULES)
    catalog = _schema(CatalogSpec, "All accelerator classes in one object; the operator writes it.", {})
    return [
        _crd(TRAINING_JOBS, job, _JOB_COLUMNS, short="tj", subresources={"status": {}}),
        _crd(ACCELERATOR_CLASSES, machine, _CLASS_COLUMNS, short="accel"),
        _crd(ACCELERATOR_CATALOGS, catalog),
    ]


def _schema(
    spec: type[BaseModel], description: str, notes: Mapping[str, str], status: type[BaseModel] | None = None
) -> Schema:
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": structural(spec, notes),
    }
    if status is not None:
        properties["status"] = structural(status, {})
    return {"type": "object", "description": description, "required": ["spec"], "properties": properties}


def _job_notes() -> dict[str, str]:
    """Return what `kubectl explain` adds to a description: the unit and the default."""
    notes = {}
    for row in rows():
        unit = f"Unit: {row.unit}. " if row.unit and row.unit != row.type else ""
        default = "" if row.default in ("required", "none") else f"Default: {row.default}."
        notes[row.path.removeprefix("spec.")] = f"{unit}{default}".strip()
    return {path: note for path, note in notes.items() if note}


def _attach(schema: Schema, rules: Sequence[Rule]) -> None:
    """Put each rule where it belongs."""
    for rule in rules:
        node = schema
        for part in rule.at.split(".") if rule.at else ():
            node = node["items"] if part == "*" else node["properties"][part]
        written = {"rule": rule.holds, "messageExpression" if rule.shows else "message": rule.message}
        if rule.field:
            written["fieldPath"] = rule.field
        node.setdefault("x-kubernetes-validations", []).append(written)


def _crd(
    kind: Kind, schema: Schema, columns: Sequence[tuple[str, str, str, int]] = (), *, short: str = "", **parts: Any
) -> dict[str, Any]:
    names = {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": kind.kind.lower()}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **parts}
    if columns:
        version["additionalPrinterColumns"] = [
            {"name": name, "jsonPath": path, "type": type_, "priority": priority}
            for name, path, type_, priority in columns
        ]
    spec = {
        "group": kind.group,
        "names": {**names, **({"shortNames": [short]} if short else {}), "categories": ["shardwise"]},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "versions": [version],
    }
    # With a CRD go all objects of its kind: Argo CD never deletes one, even if it is no longer told of it (`skipCrds`).
    kept = {"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"}
    return CRDS.manifest({"name": f"{kind.plural}.{kind.group}", "annotations": kept}, spec=spec)
