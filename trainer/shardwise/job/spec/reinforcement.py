"""The `training.reinforcement` section: completions that the model makes itself, and what each of them is worth."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import Count, Unit
from shardwise.protocol.strict_model import StrictModel

_Word = Annotated[str, Field(max_length=32768)]


class Reward(StrictModel):
    """What says how good a completion is: a pattern that finds its answer, or a program."""

    pattern: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Regular expression; what its last match has in its first group is the answer. 1 if right, else 0.",
    )
    field: str = Field(
        "answer",
        min_length=1,
        max_length=256,
        description="With pattern: key of the right answer in a prompt's line.",
    )
    command: tuple[_Word, ...] = Field(
        (),
        strict=False,
        max_length=256,
        description="Program and its words, without a shell: lines of JSON in, a number for each out.",
    )
    within: Duration = Field(
        Duration("1m"),
        description="With command: the longest wait for the rewards of a step, once all of its completions are made.",
    )


class Reinforcement(StrictModel):
    """Learning from rewards: GRPO, in which the completions of one prompt are compared with each other."""

    samples: Annotated[int, Unit("completions")] = Field(
        ge=2, le=4096, description="Completions of each prompt; divides batch.sequences."
    )
    max_tokens: Annotated[Count, Unit("tokens")] = Field(
        description="Tokens of a completion at most; fewer than model.seqLen."
    )
    reward: Reward = Field(description="What each completion is worth.")
    advantage: Literal["normalised", "centred"] = Field(
        "normalised",
        description="A reward less its prompt's mean; normalised: over the deviation of that prompt's rewards.",
    )
    average: Literal["tokens", "completions", "limit"] = Field(
        "tokens",
        description="Loss over all tokens (DAPO), the mean of each completion's (GRPO), or over maxTokens (Dr. GRPO).",
    )
    temperature: Annotated[float, Unit("ratio")] = Field(
        1.0, gt=0, le=10, description="Divides the logits that tokens are drawn by and learned by; below 1 is tamer."
    )
    updates: Annotated[int, Unit("steps")] = Field(
        1, ge=1, le=64, description="Steps that are taken on completions of the same weights, each on its own part."
    )
    clip_low: Annotated[float, Unit("ratio")] = Field(
        0.2, gt=0, lt=1, description="With updates: what got less likely by more than this is not pushed further down."
    )
    clip_high: Annotated[float, Unit("ratio")] = Field(
        0.2, gt=0, le=100, description="With updates: what got likelier by more than this is not pushed further up."
    )
    kl_weight: Annotated[float, Unit("ratio")] = Field(
        0.0, ge=0, le=100, description="Weight of the divergence from the model that the run began with; 0: none."
    )
