"""What host 0 says of its run, as far as the operator reads it: checked, for a job chooses what answers at its address.

Called by `agents.py`. Fields that are not known are of a newer release, and left out. The bounds are those of the CRD,
which would refuse a status that passes them.
"""

from typing import Annotated, Any, Required

from pydantic import AfterValidator, Field, TypeAdapter
from typing_extensions import TypedDict

_MOST_TEXT = 4096

_Text = Annotated[str, AfterValidator(lambda text: text[:_MOST_TEXT])]
_Word = Annotated[str, Field(max_length=63)]
_Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Seconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class _Progress(TypedDict, total=False):
    step: _Count | None
    of: _Count | None
    loss: float | _Word | None
    tokensPerSecond: float | _Word | None
    mfu: float | _Word | None
    stepSeconds: _Seconds | None


class _Checkpoint(TypedDict, total=False):
    step: Required[_Count]
    seconds: _Seconds


class _Stuck(TypedDict):
    address: _Word
    words: _Text


class _Told(TypedDict, total=False):
    phase: Required[Annotated[str, Field(pattern=r"^[A-Za-z]{1,32}$")]]
    reason: _Text
    incarnation: _Count | None
    restarts: Annotated[dict[_Word, _Count], Field(max_length=16)]  # the operator adds its own causes
    slowestHost: _Count | None
    progress: _Progress
    checkpoint: _Checkpoint | None
    goodput: Annotated[dict[_Word, _Seconds], Field(max_length=32)]
    stuck: list[_Stuck]


_TOLD = TypeAdapter(_Told)


def read_told(answer: bytes) -> dict[str, Any]:
    """The status in an answer; ValueError where it is none."""
    return dict(_TOLD.validate_json(answer))
