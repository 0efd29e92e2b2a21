"""The `training.model.ropeScaling` section: rotary positions for more positions than a model was first trained on."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.protocol.strict_model import StrictModel

_Stretch = Annotated[float, Field(gt=0, le=1e6)]
_MOST_PAIRS = 1024


class RopeScaling(StrictModel):
    """How rotary positions are stretched over more positions than they were first trained on."""

    kind: Literal["linear", "llama3", "yarn", "longrope"] = Field(
        description="linear: all frequencies; llama3: the low ones, smoothly; yarn: by frequency, and sharper; "
        "longrope: each by a factor of its own (Phi 3)."
    )
    factor: Annotated[float, Unit("times")] = Field(
        ge=1, le=1e6, description="By how much the positions are stretched."
    )
    original_seq_len: Annotated[int | None, Unit("tokens"), FilledFrom("seqLen / factor")] = Field(
        None, ge=1, le=1048576, description="Positions of the first training; for all kinds but linear."
    )
    low_frequency_factor: Annotated[float, Unit("turns")] = Field(
        1.0, gt=0, le=1e6, description="llama3: turns in originalSeqLen below which all is stretched."
    )
    high_frequency_factor: Annotated[float, Unit("turns")] = Field(
        4.0, gt=0, le=1e6, description="llama3: turns in originalSeqLen above which nothing is."
    )
    beta_slow: Annotated[float, Unit("turns")] = Field(
        1.0, gt=0, le=1e6, description="yarn: turns in originalSeqLen below which all is stretched."
    )
    beta_fast: Annotated[float, Unit("turns")] = Field(
        32.0, gt=0, le=1e6, description="yarn: turns in originalSeqLen above which nothing is."
    )
    attention_factor: Annotated[
        float | None,
        Unit("times"),
        FilledFrom("0.1 ln(factor) + 1 for yarn, sqrt(1 + ln(factor) / ln(originalSeqLen)) for longrope"),
    ] = Field(None, gt=0, le=1e6, description="yarn and longrope: what queries and keys are multiplied by.")
    truncate: bool = Field(True, description="yarn: whether what it stretches begins and ends at whole pairs.")
    short_factors: Annotated[tuple[_Stretch, ...], Unit("times")] = Field(
        (),
        strict=False,
        max_length=_MOST_PAIRS,
        description="longrope: by how much each pair is stretched, rotaryDim / 2 of them, while seqLen is at most "
        "originalSeqLen.",
    )
    long_factors: Annotated[tuple[_Stretch, ...], Unit("times")] = Field(
        (), strict=False, max_length=_MOST_PAIRS, description="longrope: the same for a longer seqLen."
    )
