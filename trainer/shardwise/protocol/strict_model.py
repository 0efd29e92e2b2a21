"""The base of the models that are read strictly: the job file, and a job's status in a cluster."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class StrictModel(BaseModel):
    """A closed, frozen, strict group of fields: snake_case in Python, camelCase in YAML and JSON."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )
