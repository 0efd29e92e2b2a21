"""From a pydantic model to a structural schema, the part of OpenAPI that a CRD may use.

It is strict: a keyword that it does not know, and a string, list or map without a bound (which the cost budget of CEL
needs), is a SchemaError at generation, not a surprise at installation. Defaults are left out: a default in a CRD would
edit running jobs, and the models have them already.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from shardwise.job.quantity import DURATION_PATTERN

Schema = dict[str, Any]

INT_OR_STRING = "x-kubernetes-int-or-string"

# What a list's items are told apart by; the API server refuses two of one key. Other lists are replaced as a whole.
_LIST_KEYS = ("name", "mountPath", "type", "topology")
_ATOMIC = ("envFrom", "machines", "phases", "tolerations")

_COPIED = (
    *("type", "description", "required", "enum", "format", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties"),
)
_DROPPED = ("$defs", "title", "default", "propertyNames")
_BOUNDS = {"string": "maxLength", "array": "maxItems", INT_OR_STRING: "maxLength"}


# Of a duration; its pattern alone does not require it.
_ABOVE_ZERO = {
    "rule": "self.matches('[1-9]')",
    "message": "expected a duration above 0s, such as 90s, 10m, 1h30m or 7d",
}


class SchemaError(Exception):
    """A model means something that no CRD can express, or leaves a size open; the text names the place."""


def structural(model: type[BaseModel], notes: Mapping[str, str]) -> Schema:
    """Return the schema of `model`; `notes` by dotted path are added to descriptions."""
    document = model.model_json_schema(by_alias=True)
    return _Transform(document.get("$defs", {}), notes).node(document, "")


class _Transform:
    def __init__(self, definitions: Mapping[str, Schema], notes: Mapping[str, str]) -> None:
        self._definitions = definitions
        self._notes = notes

    def node(self, given: Schema, path: str) -> Schema:
        """Return the structural form of one node of the JSON schema."""
        nullable = _takes_null(given)
        given = self._inlined(_without_null(given))
        result: Schema = {}
        for keyword, value in given.items():
            result.update(self._keyword(keyword, value, given, path))
        if path in self._notes:
            result["description"] = f"{result['description']} {self._notes[path]}"
        if nullable:
            result["nullable"] = True
        if result.get("pattern") == DURATION_PATTERN:
            result["x-kubernetes-validations"] = [_ABOVE_ZERO]
        _check_bounds(result, path)
        return _as_int_or_string(result) if result["type"] == INT_OR_STRING else result

    def _inlined(self, given: Schema) -> Schema:
        """Replace a node's reference by what it names; keywords beside the reference win."""
        if "$ref" not in given:
            return given
        beside = {keyword: value for keyword, value in given.items() if keyword != "$ref"}
        return {**self._definitions[given["$ref"].rpartition("/")[2]], **beside}

    def _keyword(self, keyword: str, value: Any, given: Schema, path: str) -> Schema:
        written: Schema = {}
        match keyword:
            case _ if keyword in _COPIED:
                written = {keyword: value}
            case _ if keyword in _DROPPED or value is False:
                # A closed group needs no word: the API server drops or refuses what a schema does not name.
                pass
            case "const":
                written = {"enum": [value]}
            case "exclusiveMinimum" | "exclusiveMaximum":
                written = {keyword.removeprefix("exclusive").lower(): value, keyword: True}
            case "properties":
                written = {keyword: {name: self.node(child, _join(path, name)) for name, child in value.items()}}
            case "additionalProperties" if value is True:
                written = {"x-kubernetes-preserve-unknown-fields": True}
            case "additionalProperties":
                written = {keyword: self.node(value, path + ".*")}
            case "items":
                items = self.node(value, path + ".*")
                written = {keyword: items, **_list_type(items, path)}
            case _:
                raise SchemaError(f"{path or 'the root'}: {keyword} has no form in a CRD: {given}")
        return written


def _takes_null(given: Schema) -> bool:
    """Return whether null is a value of its own: allowed, and different from leaving the field out."""
    return {"type": "null"} in given.get("anyOf", []) and given.get("default") is not None


def _without_null(given: Schema) -> Schema:
    """Put the node's alternative to null in its place."""
    options = given.get("anyOf")
    if options is None:
        return given
    others = [option for option in options if option != {"type": "null"}]
    beside = {keyword: value for keyword, value in given.items() if keyword != "anyOf"}
    if [option.get("type") for option in others] == ["integer", "string"]:
        return {**others[0], **others[1], **beside, "type": INT_OR_STRING}
    if len(others) != 1:
        raise SchemaError(f"a choice of types has no form in a CRD: {given}")
    return {**others[0], **beside}


def _as_int_or_string(result: Schema) -> Schema:
    """Return the one choice of types that a CRD has; a bound of one type does not apply to the other."""
    bounds = {keyword: value for keyword, value in result.items() if keyword != "type"}
    return {**bounds, INT_OR_STRING: True, "anyOf": [{"type": "integer"}, {"type": "string"}]}


def _list_type(items: Schema, path: str) -> Schema:
    required = items.get("required", [])
    keys = [key for key in _LIST_KEYS if key in required]
    if path.rpartition(".")[2] == "volumeMounts":
        keys = ["mountPath"]
    if not keys or path.rpartition(".")[2] in _ATOMIC:
        return {"x-kubernetes-list-type": "atomic"}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys[:1]}


def _check_bounds(result: Schema, path: str) -> None:
    kind = result.get("type")
    if kind is None:
        raise SchemaError(f"{path or 'the root'}: a value of any type has no form in a CRD")
    bound = "maxProperties" if kind == "object" and "additionalProperties" in result else _BOUNDS.get(kind)
    if bound is not None and bound not in result and "enum" not in result:
        raise SchemaError(f"{path or 'the root'}: a {kind} without {bound}, which the cost budget of CEL needs")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
