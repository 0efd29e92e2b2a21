"""What the models of the job file, of classes and of statuses share: bounds, and the notes that `explain` shows.

Every string, list and map has an upper bound, because the schema of a Kubernetes resource is generated from these
models and refuses one without.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from shardwise.protocol.message import MAX_INT32

MAX_PATH_LENGTH = 1024
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
ABSOLUTE_PATH = r"^(/[^/:]+)+$"
SHARED_PLACE = r"^((gs|s3):/)?(/[^/:]+)+$"


@dataclass(frozen=True)
class Unit:
    """What a number counts or measures: a field's note for people."""

    name: str


@dataclass(frozen=True)
class FilledFrom:
    """Where the value of a field that is left out comes from: a field's note for people."""

    words: str


@dataclass(frozen=True)
class Grammar:
    """What a text looks like, in words, beside its pattern: a field's note for people."""

    words: str


DNS_LABEL_WORDS = Grammar("lower-case letters, digits and '-', a letter or digit at both ends")
ABSOLUTE_PATH_WORDS = Grammar("folders that each follow a '/', without ':'")
SHARED_PLACE_WORDS = Grammar("folders that each follow a '/', without ':', after gs:/ or s3:/ if they are in a bucket")

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL), DNS_LABEL_WORDS]
MarkKey = Annotated[str, Field(min_length=1, max_length=317)]
Annotations = dict[MarkKey, Annotated[str, Field(max_length=4096)]]
PathText = Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH)]
AbsolutePath = Annotated[
    str, Field(min_length=1, max_length=MAX_PATH_LENGTH, pattern=ABSOLUTE_PATH), ABSOLUTE_PATH_WORDS
]
SharedPlace = Annotated[str, Field(min_length=1, max_length=MAX_PATH_LENGTH, pattern=SHARED_PLACE), SHARED_PLACE_WORDS]
Count = Annotated[int, Field(ge=1, le=MAX_INT32)]
XlaFlag = Annotated[
    str,
    Field(min_length=7, max_length=256, pattern=r"^--xla_[a-z0-9_]+(=[^ ]*)?$"),
    Grammar("an option of XLA's compiler, such as --xla_gpu_enable_triton_gemm=false; without a value it is true"),
]
