"""The `training.model.latent` section: keys and values that are made of one narrow vector for each token."""

from typing import Annotated

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

_PRESET = FilledFrom("the preset")


class Latent(StrictModel):
    """Multi-head latent attention: `headSize` is that of queries and keys, whose last `rotaryDim` are turned."""

    kv_rank: Annotated[int | None, Unit("values per token"), _PRESET] = Field(
        None, ge=1, le=65536, description="Width of the vector that a token's keys and values are made of, all heads'."
    )
    q_rank: Annotated[int | None, Unit("values per token"), _PRESET] = Field(
        None, ge=1, le=65536, description="Width of the one that its queries are; left out: they are made directly."
    )
    value_size: Annotated[
        int | None, Unit("values per head"), FilledFrom("the preset, or else headSize - rotaryDim")
    ] = Field(None, ge=1, le=65536, description="Width of one head's values.")
    norm_epsilon: Annotated[float | None, Unit("variance"), FilledFrom("the preset, or else 1e-06")] = Field(
        None, gt=1e-20, le=1, description="As normEpsilon, in the norms of these vectors."
    )


LatentIfAny = Annotated[
    Latent | None,
    FilledFrom("the preset, or else none"),
    Field(description="Makes a token's keys and values of one narrow vector (DeepSeek-V2)."),
]
