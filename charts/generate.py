"""Makes a chart's values.schema.json, and the table of values in its README, from the comments of its values.yaml.

`# -- words` documents the key below it, and `# schema: {...}` adds to what the key's default says of its type.  There,
`{$spec: NAME}` is any part of the spec of the chart's CRD of that name.  The schema is closed: Helm refuses a value
that the chart does not have.  It asks for every group, and for every key whose default is a number, a text or true:
Helm takes out what a user sets to null before it looks, and so refuses null for what no template can do without.
`python charts/generate.py` writes the files of every chart; tests/charts call the functions and compare.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHARTS = tuple(path.parent for path in sorted(Path(__file__).parent.glob("*/values.yaml")))
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)

_SPEC = "$spec"
_KEY = re.compile(r"^( *)([A-Za-z]+):")
_TYPES: Mapping[type, str] = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One documented key: where it is, what is said of it, its default, and what the comments add to its schema."""

    path: tuple[str, ...]
    words: str
    default: Any
    extra: Mapping[str, Any]


class ValuesError(ValueError):
    """values.yaml leaves out what the schema needs."""


def values(text: str) -> list[Value]:
    """The documented keys of a values.yaml, in its order.

    Raises:
        ValuesError: A `# schema:` stands without words, or a key without either has no documented key below it.
    """
    defaults = yaml.safe_load(text)
    documented = list(_documented(text, defaults))
    paths = {value.path for value in documented}
    for path in _leaves(defaults):
        if not any(path[: len(value)] == value for value in paths):
            raise ValuesError(f"{'.'.join(path)} has no `# --` line above it: say what it is for")
    return documented


def schema(text: str) -> dict[str, Any]:
    """The closed JSON schema of a values.yaml.

    Raises:
        ValuesError: As `values`; or a default says too little of its type.
    """
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft-07/schema#", **_closed()}
    for value in values(text):
        group = root
        for key in value.path[:-1]:
            group = _member(group, key, _closed(), needed=True)
        needed = isinstance(value.default, bool | int | str) and bool(value.default)
        _member(group, value.path[-1], _described(value), needed=needed)
    root["properties"]["global"] = {"type": "object", "description": "Helm's own, for a chart that has this one in it."}
    return root


def table(text: str) -> str:
    """The values as a Markdown table."""
    rows = ["| Value | Default | Is |", "|---|---|---|"]
    for value in values(text):
        default = json.dumps(value.default).replace("|", "\\|")
        rows.append(f"| `{'.'.join(value.path)}` | `{default}` | {value.words} |")
    return "\n".join(rows) + "\n"


def schema_text(chart: Path) -> str:
    """What the chart's values.schema.json must hold."""
    made = schema((chart / "values.yaml").read_text(encoding="utf-8"))
    return json.dumps(_with_specs(made, chart / "crds"), indent=2) + "\n"


def readme_text(chart: Path) -> str:
    """The chart's README with the table as it must be."""
    rows = table((chart / "values.yaml").read_text(encoding="utf-8"))
    return TABLE.sub(lambda _: rows, (chart / "README.md").read_text(encoding="utf-8"))


def _with_specs(made: Any, crds: Path) -> Any:
    """The same with the parts of a CRD's spec in the place of what names them."""
    if not isinstance(made, dict):
        return made
    if _SPEC in made:
        crd = yaml.safe_load((crds / f"{made[_SPEC]}.yaml").read_text(encoding="utf-8"))
        return _part_of(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return {key: _with_specs(inner, crds) for key, inner in made.items()}


def _part_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of any part of what a CRD describes: nothing is required, and null takes a key out."""
    if described.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string", "null"]}
    part: dict[str, Any] = {"type": [described["type"], "null"]} if "type" in described else {}
    if "enum" in described:
        part["enum"] = [*described["enum"], None]
    if "items" in described:
        part["items"] = _part_of(described["items"])
    if "properties" in described:
        part["properties"] = {key: _part_of(inner) for key, inner in described["properties"].items()}
        part["additionalProperties"] = bool(described.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(described.get("additionalProperties"), dict):
        part["additionalProperties"] = _part_of(described["additionalProperties"])
    return part


def _documented(text: str, defaults: Any) -> Iterator[Value]:
    """Walk the lines: indentation tells the path, and comments belong to the key below them."""
    path: list[tuple[int, str]] = []
    words, extra = "", {}
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("# --"):
            words = comment.removeprefix("# --").strip()
        elif comment.startswith("# schema:"):
            extra = yaml.safe_load(comment.removeprefix("# schema:"))
        elif match := _KEY.match(line):
            indent, key = len(match[1]), match[2]
            path = [*(part for part in path if part[0] < indent), (indent, key)]
            names = tuple(name for _, name in path)
            if words:
                yield Value(path=names, words=words, default=_at(defaults, names), extra=extra)
            elif extra:
                raise ValuesError(f"{'.'.join(names)} has a `# schema:` line and no `# --` line: say what it is for")
            words, extra = "", {}


def _leaves(defaults: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(defaults, dict) or not defaults:
        yield path
        return
    for key, inner in defaults.items():
        yield from _leaves(inner, (*path, key))


def _described(value: Value) -> dict[str, Any]:
    kind = _TYPES[type(value.default)]
    described = {"type": kind, "description": value.words, **value.extra}
    if kind == "array" and "items" not in described:
        raise ValuesError(f"{'.'.join(value.path)} is a list: say of what, as `# schema: {{items: ...}}`")
    if kind == "object" and "additionalProperties" not in described:
        raise ValuesError(f"{'.'.join(value.path)} is a map: say of what, as `# schema: {{additionalProperties: ...}}`")
    return described


def _member(group: dict[str, Any], key: str, described: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    """What the group says of this key, put there if it is new."""
    if needed and key not in group["properties"]:
        group.setdefault("required", []).append(key)
    member: dict[str, Any] = group["properties"].setdefault(key, described)
    return member


def _closed() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _at(defaults: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        defaults = defaults[key]
    return defaults


def main() -> None:
    """Write both files of every chart."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for chart in CHARTS:
        (chart / "values.schema.json").write_text(schema_text(chart), encoding="utf-8")
        (chart / "README.md").write_text(readme_text(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
