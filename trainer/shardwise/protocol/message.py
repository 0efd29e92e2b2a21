"""The base of all messages that processes exchange as JSON, and the bounds of what is read from another machine."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

MAX_INT32 = 2**31 - 1  # of counts in the CRDs: the API server would refuse an object that passes it

Count = Annotated[int, Field(ge=0, le=MAX_INT32)]
ShortText = Annotated[str, Field(max_length=63)]
Seconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class Message(BaseModel):
    """A frozen group of fields: snake_case in Python, camelCase in JSON.

    Fields that are not known are ignored: the process at the other end may be of a newer release.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @classmethod
    def of_what_fits(cls, given: Mapping[str, Any], **own: Any) -> Self:
        """Return a message with these own fields, and with those of the given ones that it may have.

        What is given is of a program, which may write what it likes: each other field has its default.
        """
        try:
            return cls.model_validate({**given, **own})
        except ValidationError:
            fitting = {name: value for name, value in given.items() if cls._takes({**own, name: value})}
            return cls.model_validate({**fitting, **own})

    @classmethod
    def _takes(cls, fields: Mapping[str, Any]) -> bool:
        with suppress(ValidationError):
            cls.model_validate(fields)
            return True
        return False

    @classmethod
    def loads(cls, text: str | bytes) -> Self | None:
        """Return the message in `text`; None if it is another text, such as what a process that was killed leaves."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None
