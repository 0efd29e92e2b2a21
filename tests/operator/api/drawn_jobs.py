"""Jobs that a seed draws from the CRD's own schema: right ones, of which a few places were changed for better or worse.

What is drawn for a place goes by its schema: a value that it allows, one just beyond its bounds, one of another type,
nothing, or far too much; and there are fields that nobody knows. Used by `test_fuzz.py`.
"""

import random
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from tests.charts.helm import JOBS
from tests.job.wrong_files import IN_CLUSTER
from tests.operator.api.conftest import CHART

from shardwise.job.document import read_document

Schema = dict[str, Any]

MOST_PODS = 64
"""Of a job that is taken; those with more, up to the limit, would take most of the time."""

_ODD = (
    *("", " ", "-", "..", "../../etc/passwd", "/", "//", "a/../../b", "a\nb", "a\tb", "\u0000", "\u0085", "\ufeff"),
    *("\ud800", "\u202egnp", "e\u0301", "\U0001f916" * 9, "a\u200bb", "K\u2028", "%s%n", "$(HOME)", "`id`", "{{ . }}"),
    *(
        "yes",
        "~",
        "null",
        "0x10",
        "017",
        "1e3",
        ".nan",
        "1:30",
        "---\n",
        "!!python/name:os.system",
        "&a [*a]",
        "'",
        '"',
    ),
    *("a: b\n- c", "# x", "|-\n x", "\u00e9" * 40, "x" * 64, "x" * 5000),
)
_WORDS = (
    *(
        "a",
        "runs",
        "text",
        "web",
        "1x8",
        "2x2",
        "2x1",
        "4x1",
        "1x1",
        "2x2x1",
        "2x2x4",
        "4x4",
        "64x1",
        "99999x1",
        "9" * 30,
    ),
    *("9" * 30, "10m", "1h30m", "0s", "7d", "3650d", "90s", "4Gi", "250m", "0", "16", "1e3", "1Ei", "/runs", "/runs/x"),
    *("--xla_gpu_enable_triton_gemm=false", "byte", "cpu", "memory", "nvidia.com/gpu", "shardwise.dev/job", "a.b/c"),
    *("PATH", "LD_PRELOAD", "SHARDWISE_X", "README.md", "s3://b/c", "gs://b", "file:///etc", "default", "kube-system"),
    *("cpu-sim", "gpu", "tpu-v5p", "tpu-v6e", "system-node-critical", "localhost/trainer:dev", "tiny", "2027-01-01"),
)
_OF_ANOTHER_TYPE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**63 - 1, -(2**63), 2**64, 1e308, 5e-324, [], {}, [None], [[]], [{}]),
    *({"a": {"b": {}}}, {"": ""}, {"name": 1}, [1, "a"], ["x"] * 3000, {str(one): one for one in range(700)}),
)


class Drawing:
    """Jobs, one after the other; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        """Read the schema that is checked in."""
        self._random = random.Random(seed)
        crd = yaml.safe_load((CHART / "crds" / "trainingjobs.shardwise.dev.yaml").read_text(encoding="utf-8"))
        self._schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        self._right = [read_document(Path(path)).data for path in (*JOBS, IN_CLUSTER)]

    def job(self, name: str) -> dict[str, Any]:
        """The next one."""
        job = deepcopy(self._random.choice(self._right))
        job["metadata"] = {"name": name}
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 8))):
            self._change(job["spec"], self._schema["spec"])
        if self._random.random() < 0.05:
            labels = {self._text({}): self._text({})}
            job["metadata"] |= self._random.choice(
                ({"labels": labels}, {"annotations": labels}, {"name": self._text({})})
            )
        if self._random.random() < 0.02:
            job[self._random.choice(("spec", "status"))] = self._wrong({})
        return _with_few_pods(job)

    def _change(self, data: dict[str, Any], schema: Schema) -> None:
        """Change one place at or below `data`, each as likely as another."""
        known = schema.get("properties", {})
        names = sorted(known)
        name = self._random.choices(names, [_places(known[one]) for one in names])[0] if known else self._text({})
        below = known.get(name, schema.get("additionalProperties", {}))
        if "properties" in below and isinstance(data.setdefault(name, {}), dict) and self._random.random() < 0.95:
            self._change(data[name], below)
            return
        there, roll = data.get(name), self._random.random()
        if "items" in below and isinstance(there, list) and there and isinstance(there[0], dict) and roll < 0.8:
            self._change(there[0], below["items"])
        elif roll < 0.94:
            data[name] = self._value(below) if self._random.random() < 0.85 else self._wrong(below)
        elif roll < 0.98:
            data.pop(name, None)
        else:
            data[self._random.choice((name + "x", name.lower(), "é", "x" * 300, "image", "hostNetwork"))] = self._wrong(
                {}
            )

    def _value(self, schema: Schema) -> Any:
        """What the schema allows, as far as types and bounds say it."""
        match schema.get("type"):
            case _ if "enum" in schema:
                drawn: Any = self._random.choice(schema["enum"])
            case "boolean":
                drawn = self._random.choice((True, False))
            case "integer":
                drawn = self._whole(schema)
            case "number":
                least, most = schema.get("minimum", 0), schema.get("maximum", 1e9)
                drawn = self._random.choice((least, most, self._random.uniform(least, most), 1e-5, 1))
            case "array":
                drawn = [self._value(schema["items"]) for _ in range(self._many(schema, "Items"))]
            case "object" if "properties" in schema:
                wanted = schema.get("required", ())
                names = [name for name in schema["properties"] if name in wanted or self._random.random() < 0.25]
                drawn = {name: self._value(schema["properties"][name]) for name in names}
            case "object":
                below = schema.get("additionalProperties", {"type": "string"})
                most = schema if "maxProperties" in schema else {"maxProperties": 8}
                drawn = {self._text({}): self._value(below) for _ in range(self._many(most, "Properties"))}
            case _:
                drawn = self._text(schema)
        return drawn

    def _wrong(self, schema: Schema) -> Any:
        """What the schema most likely refuses: beyond a bound, of another type, odd, or too deep."""
        beyond: list[Any] = [schema[bound] + 1 for bound in ("maximum",) if bound in schema]
        beyond += [schema[bound] - 1 for bound in ("minimum",) if bound in schema]
        beyond += ["a" * (schema["maxLength"] + 1)] if "maxLength" in schema else []
        beyond += [[self._value(schema["items"])] * (schema["maxItems"] + 1)] if "maxItems" in schema else []
        deep: Any = []
        for _ in range(self._random.choice((3, 90))):
            deep = [deep] if self._random.random() < 0.5 else {"a": deep}
        return self._random.choice((*beyond, *beyond, self._random.choice(_OF_ANOTHER_TYPE), self._text({}), deep))

    def _whole(self, schema: Schema) -> int:
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
        small = min(most, least + self._random.randrange(9))
        return int(self._random.choice((least, most, small, small, self._random.randint(least, most))))

    def _many(self, schema: Schema, what: str) -> int:
        least, most = schema.get("min" + what, 0), schema["max" + what]
        return int(self._random.choice((least, least + 1, 2, 3, min(most, 128))))

    def _text(self, schema: Schema) -> str:
        """Of the schema's pattern where any is known, and of its greatest length at times."""
        longest = "a" * min(schema.get("maxLength", 300), 40_000)
        words = [*_WORDS, longest, *(_ODD if self._random.random() < 0.3 or "pattern" not in schema else ())]
        fitting: list[str] = [word for word in words if re.search(schema.get("pattern", ""), word)]
        return str(self._random.choice(fitting or words))


def _places(schema: Schema) -> int:
    """How many places a node of the schema has at and below it."""
    below = [*schema.get("properties", {}).values(), *(schema[each] for each in ("items",) if each in schema)]
    return 1 + sum(_places(each) for each in below)


def _with_few_pods(job: dict[str, Any]) -> dict[str, Any]:
    """The job with fewer slices where it would be taken with very many pods."""
    hardware = job["spec"].get("hardware") if isinstance(job.get("spec"), dict) else None
    if isinstance(hardware, dict) and isinstance(hardware.get("slices"), int):
        hosts = re.match(r"[0-9]{1,9}", str(hardware.get("topology", "")))
        slices = int(hardware["slices"])
        if hosts and MOST_PODS < int(hosts[0]) * slices <= 4096 and slices > 1:
            hardware["slices"] = 2
    return job
