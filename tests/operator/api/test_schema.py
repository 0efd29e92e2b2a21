"""shardwise_operator.api.schema: from a pydantic model to what a CRD may say."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from shardwise.job.quantity import QUANTITY_PATTERN, Quantity
from shardwise_operator.api.schema import SchemaError, structural

Text = Annotated[str, Field(max_length=8)]


class Item(BaseModel):
    """An item."""

    name: Text


def schema_of(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of one field."""
    model = create_model("Model", field=(annotation, default))
    found: dict[str, Any] = structural(model, {})["properties"]["field"]
    return found


@pytest.mark.parametrize(
    ("annotation", "default", "schema"),
    [
        (Text, ..., {"type": "string", "maxLength": 8}),
        (Text | None, None, {"type": "string", "maxLength": 8}),
        (
            Annotated[float, Field(gt=0)] | None,
            1.0,
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "nullable": True},
        ),
        (Annotated[int, Field(lt=4)], 2, {"type": "integer", "maximum": 4, "exclusiveMaximum": True}),
        (
            Quantity,
            ...,
            {
                "x-kubernetes-int-or-string": True,
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY_PATTERN,
                "maxLength": 32,
                "minimum": 0,
            },
        ),
        (Literal["a"], ..., {"type": "string", "enum": ["a"]}),
        (Literal["a", "b"], "a", {"type": "string", "enum": ["a", "b"]}),
        (
            Annotated[dict[Text, int], Field(max_length=2)],
            ...,
            {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}},
        ),
        (
            Annotated[tuple[Text, ...], Field(max_length=2)],
            ...,
            {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "maxLength": 8},
                "x-kubernetes-list-type": "atomic",
            },
        ),
    ],
)
def test_each_type_has_its_form(annotation: Any, default: Any, schema: dict[str, Any]) -> None:
    """Bounds stay, defaults and titles go, and null is kept only where it is a value of its own."""
    assert schema_of(annotation, default) == schema


def test_items_with_a_name_are_told_apart_by_it() -> None:
    """Server-side apply merges such a list by item, and two of one name are refused."""
    schema = schema_of(Annotated[tuple[Item, ...], Field(max_length=4)])

    assert (schema["x-kubernetes-list-type"], schema["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert schema["items"]["required"] == ["name"]
    assert "$ref" not in str(schema)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (str, "field: a string without maxLength"),
        (tuple[Text, ...], "field: a array without maxItems"),
        (dict[Text, int], "field: a object without maxProperties"),
        (bool | Text, "a choice of types"),
        (Any, "a value of any type"),
        (
            Annotated[dict[Annotated[str, Field(pattern="a", max_length=2)], int], Field(max_length=2)],
            "patternProperties",
        ),
    ],
)
def test_what_no_crd_can_say_stops_generation(annotation: Any, said: str) -> None:
    """A size that is left open, or a keyword without a form, is an error that names the place."""
    with pytest.raises(SchemaError, match=said):
        schema_of(annotation)


def test_notes_are_added_to_descriptions() -> None:
    """Units and defaults reach `kubectl explain`."""

    class Model(BaseModel):
        """A model."""

        steps: Annotated[int, Field(description="Steps.")]

    assert structural(Model, {"steps": "Unit: steps."})["properties"]["steps"]["description"] == "Steps. Unit: steps."
