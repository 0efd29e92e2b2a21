"""The admission policy of accelerators: what can be checked of a job only with its class, at apply, without a webhook.

Its parameter is the catalogue (`catalog.py`), by name. It looks at a job that is new, or whose hardware, training
or fewest slices change (which they do only while it is suspended), so that an edited class locks no running job.
Without a catalogue it lets the job through: the operator checks every job again and reports what is wrong in a
condition.
"""

from typing import Any

from shardwise.job.flags import OVERLAP, OVERLAP_WITH_FUSION
from shardwise.protocol.job_status import MAX_HOSTS
from shardwise_operator.api.admission import admission
from shardwise_operator.api.catalog import CATALOG_NAME
from shardwise_operator.api.cel import divisors, fusing, has_size, of_preset, overlaps
from shardwise_operator.runtime.kinds import ACCELERATOR_CATALOGS

_MOST_LISTED = 64
# A message names the numbers of slices that would do among these, and of the job's own.
_COUNTS = "[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 16, 20, 24, 28, 32, 48, 64, 96, 128, 256, 512, 1024]"

# Whether as many slices hold all batches evenly.
_FITS = "([variables.sequences] + variables.ramp).all(size, size % (variables.ofOneSlice * {0}) == 0)"

_VARIABLES = {
    "hardware": "object.spec.hardware",
    "training": "object.spec.training",
    "topology": "variables.hardware.topology",
    "classes": "params.spec.?classes.orValue([])",
    "found": "variables.classes.filter(c, c.name == variables.hardware.accelerator)",
    "isKnown": "variables.found.size() == 1",
    "kind": "variables.found[0]",
    "grids": "variables.kind.?topologies.orValue([])",
    # Five digits are more than any topology has, and no number that overflows.
    "sides": "variables.topology.split('x').map(side, side.size() > 5 ? 99999 : int(side))",
    "isHosts": "variables.grids.size() == 0 && variables.sides.size() == 2",
    "fitsHosts": "variables.isHosts && variables.sides[0] <= variables.kind.?maxHosts.orValue(0) "
    "&& variables.sides[1] >= variables.kind.?minDevices.orValue(0) "
    "&& variables.sides[1] <= variables.kind.?maxDevices.orValue(0)",
    "isValid": "variables.isKnown && (variables.fitsHosts "
    "|| variables.grids.exists(g, g.topology == variables.topology))",
    "ofSlice": "variables.isHosts ? variables.sides[0] * variables.sides[1] "
    ": variables.grids.filter(g, g.topology == variables.topology)[0].devices",
    "hosts": "variables.isHosts ? variables.sides[0] "
    ": variables.grids.filter(g, g.topology == variables.topology)[0].?hosts.orValue(1)",
    "slices": "variables.hardware.?slices.orValue(1)",
    "devices": "variables.ofSlice * variables.slices",
    "replica": "variables.training.?mesh.?replica.orValue(variables.slices)",
    "tensor": "variables.training.?mesh.?tensor.orValue(1)",
    "context": "variables.training.?mesh.?context.orValue(1)",
    "pipeline": "variables.training.?mesh.?pipeline.orValue(1)",
    "ofReplica": "variables.devices / variables.replica",
    "isWhole": "variables.isValid && variables.devices % variables.replica == 0",
    "isTensor": "variables.isWhole && variables.ofReplica >= variables.tensor "
    "&& variables.ofReplica % variables.tensor == 0",
    "ofTensor": "variables.ofReplica / variables.tensor",
    "isContext": "variables.isTensor && variables.ofTensor >= variables.context "
    "&& variables.ofTensor % variables.context == 0",
    "ofContext": "variables.ofTensor / variables.context",
    "isDivided": "variables.isContext && variables.ofContext >= variables.pipeline "
    "&& variables.ofContext % variables.pipeline == 0",
    "data": "variables.ofContext / variables.pipeline",
    "expert": "variables.training.?mesh.?expert.orValue(1)",
    "inner": "variables.training.?mesh.?dataInner.orValue(1)",
    "share": "variables.data * variables.replica * variables.training.batch.?microbatches.orValue(1)",
    "sequences": "variables.training.batch.sequences",
    "ramp": "variables.training.batch.?rampUp.orValue([]).map(part, part.sequences)",
    # What fewer slices hold of a microbatch: in each as many replicas as in all, and a microbatch for each stage.
    "least": "object.spec.?recovery.?minSlices.orValue(variables.slices)",
    "isOfSlices": "variables.isDivided && variables.replica % variables.slices == 0",
    "ofOneSlice": "variables.data * variables.pipeline * (variables.replica / variables.slices)",
    # What programs are compiled with: an option of the job takes the place of its class's.
    "own": "variables.training.?xlaFlags.orValue([])",
    "flags": "variables.kind.?flags.orValue([]).filter(flag, "
    "!variables.own.exists(own, own.split('=')[0] == flag.split('=')[0])) + variables.own",
    # Of many grids those are listed that have up to twice the devices asked for, and at least half.
    "asked": "variables.sides.size() > 1 ? variables.sides[0] * variables.sides[1] "
    "* (variables.sides.size() > 2 ? variables.sides[2] : 1) : variables.sides[0]",
    "close": "variables.grids.filter(g, g.devices <= 2 * variables.asked && 2 * g.devices >= variables.asked)",
    "near": f"variables.grids.size() <= {_MOST_LISTED} ? variables.grids : variables.close.size() > 0 "
    f"? variables.close : variables.grids.filter(g, g.devices <= 2 * {_MOST_LISTED})",
    "words": "variables.grids.size() > 0 ? 'one of ' + string(variables.grids.size()) + ' grids of chips, such as ' "
    "+ variables.near.map(g, g.topology).join(', ') "
    ": 'hosts x devices per host, with at most ' + string(variables.kind.?maxHosts.orValue(0)) + ' hosts and ' "
    "+ string(variables.kind.?minDevices.orValue(0)) + ' to ' + string(variables.kind.?maxDevices.orValue(0)) "
    "+ ' devices per host'",
}

_EMBED = of_preset("variables.training.model", "embed", "embed")
_HAS_EMBED = has_size("variables.training.model", "embed")
_FSDP = "variables.training.?mesh.?fsdp.orValue(true)"
_KERNEL = "variables.training.model.?attention.orValue('auto')"


def _number(path: str, value: str, expected: str) -> str:
    """Return the message about a number; `expected` is CEL that goes on in its text."""
    return f"'{path}: given ' + string({value}) + ', expected {expected}"


def _text(path: str, value: str, expected: str) -> str:
    """Return the message about a text, likewise."""
    return f"'{path}: given \"' + {value} + '\", expected {expected}"


def _divisor(name: str, value: str, before: str, number: str, after: str) -> str:
    """Return the message about a size of the mesh that does not divide a number."""
    divided = f"a size that divides {before}' + string({number}) + '{after}: ' + {divisors(number)}"
    return _number(f"spec.training.mesh.{name}", value, divided)


# What must hold, and the message if it does not.
_OF_ANY_JOB = (
    (
        "variables.isKnown",
        _text(
            "spec.hardware.accelerator",
            "variables.hardware.accelerator",
            "one of ' + variables.classes.map(c, c.name).join(', ')",
        ),
    ),
    (
        "!variables.isKnown || variables.isValid",
        _text(
            "spec.hardware.topology",
            "variables.topology",
            "for ' + variables.hardware.accelerator + ' ' + variables.words",
        ),
    ),
    (
        f"!variables.isValid || variables.hosts * variables.slices <= {MAX_HOSTS}",
        _number("spec.hardware.slices", "variables.slices", f"at most ' + string({MAX_HOSTS} / variables.hosts) ")
        + f"+ ' slices of ' + string(variables.hosts) + ' hosts: a job has at most {MAX_HOSTS} hosts'",
    ),
)
_OF_TRAINING = (
    (
        f"!variables.isKnown || {_KERNEL} == 'auto' || {_KERNEL} in variables.kind.kernels",
        _text("spec.training.model.attention", _KERNEL, "a kernel of ' + variables.hardware.accelerator ")
        + "+ ': auto, ' + variables.kind.kernels.join(', ')",
    ),
    (
        "!variables.isValid || variables.isWhole",
        _divisor("replica", "variables.replica", "", "variables.devices", " devices"),
    ),
    (
        "!variables.isWhole || variables.isTensor",
        _divisor("tensor", "variables.tensor", "", "variables.ofReplica", " devices of a replica"),
    ),
    (
        "!variables.isTensor || variables.isContext",
        _divisor("context", "variables.context", "", "variables.ofTensor", " devices of a replica over tensor"),
    ),
    (
        "!variables.isContext || variables.isDivided",
        _divisor(
            "pipeline", "variables.pipeline", "", "variables.ofContext", " devices of a replica over tensor and context"
        ),
    ),
    (
        "!variables.isDivided || variables.data % variables.inner == 0",
        _divisor("dataInner", "variables.inner", "data ", "variables.data", ""),
    ),
    (
        "!variables.isDivided || variables.data % variables.expert == 0",
        _divisor("expert", "variables.expert", "data ", "variables.data", ""),
    ),
    (
        f"!variables.isDivided || !{_FSDP} || !{_HAS_EMBED} || {_EMBED} % (variables.data * variables.context) == 0",
        (
            f"'spec.training.mesh.tensor: embed ' + string({_EMBED}) + ' does not split over data ' + "
            "string(variables.data) + (variables.context > 1 ? ' x context ' + string(variables.context) : '') "
            "+ ' with fsdp; change tensor, embed, fsdp, replica or the topology'"
        ),
    ),
    (
        "!variables.isDivided || variables.sequences % variables.share == 0",
        _number(
            "spec.training.batch.sequences", "variables.sequences", "a multiple of data ' + string(variables.data) "
        )
        + "+ ' x replica ' + string(variables.replica) "
        "+ ' x microbatches ' + string(variables.training.batch.?microbatches.orValue(1)) "
        "+ '; take ' + string((variables.sequences / variables.share + 1) * variables.share)",
    ),
    (
        "!variables.isDivided || variables.ramp.all(size, size % variables.share == 0)",
        (
            "'spec.training.batch.rampUp: expected sequences that are multiples of ' + string(variables.share) + "
            "', which is data ' + string(variables.data) + ' x replica ' + string(variables.replica) "
            "+ ' x microbatches ' + string(variables.training.batch.?microbatches.orValue(1))"
        ),
    ),
    (
        (
            "!variables.isOfSlices || variables.sequences % variables.share != 0 "
            "|| variables.least >= variables.slices "
            f"|| {_FITS.format('variables.least')}"
        ),
        _number(
            "spec.recovery.minSlices",
            "variables.least",
            "slices over which ' + string(variables.sequences) + ' sequences divide: ' "
            f"+ {_COUNTS}.filter(n, n <= variables.slices && {_FITS.format('n')})"
            ".map(n, string(n)).join(', ')",
        ),
    ),
    (
        (
            "!variables.isKnown || variables.own.size() == 0 "
            f"|| !{overlaps('variables.flags')} || {fusing('variables.flags')}.size() == 0"
        ),
        (
            f"'spec.training.xlaFlags: expected options without --{OVERLAP}: together with ' "
            f"+ {fusing('variables.flags')}[0] + ' it {OVERLAP_WITH_FUSION}'"
        ),
    ),
)


_VALIDATIONS = (
    *_OF_ANY_JOB,
    *((f"!has(object.spec.training) || ({holds})", text) for holds, text in _OF_TRAINING),
)


def accelerator_policy() -> dict[str, dict[str, Any]]:
    """Return the policy and its binding, by the names of their files."""
    is_new = (
        "request.operation == 'CREATE' || object.spec.hardware != oldObject.spec.hardware "
        "|| object.spec.?training != oldObject.spec.?training "
        "|| object.spec.?recovery.?minSlices != oldObject.spec.?recovery.?minSlices"
    )
    return admission(
        "accelerators",
        {"hardware-training-or-fewest-slices-are-new": is_new},
        variables=_VARIABLES,
        validations=[{"expression": holds, "messageExpression": text} for holds, text in _VALIDATIONS],
        spec={"paramKind": {"apiVersion": ACCELERATOR_CATALOGS.api_version, "kind": ACCELERATOR_CATALOGS.kind}},
        binding={"paramRef": {"name": CATALOG_NAME, "parameterNotFoundAction": "Allow"}},
    )
