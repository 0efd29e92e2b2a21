"""The `training.loss` section: cross entropy, or of good and bad answers one of the losses that prefer good ones."""

from typing import Annotated, Literal

from pydantic import Field

from shardwise.job.spec.base import Unit
from shardwise.protocol.strict_model import StrictModel


class Loss(StrictModel):
    """The training objective: cross entropy, or with preferences that of DPO, IPO, SimPO, ORPO or KTO."""

    z_loss: Annotated[float, Unit("ratio")] = Field(
        0.0, ge=0, le=1, description="Weight of the squared log of the softmax's normaliser."
    )
    block_tokens: Annotated[int, Unit("tokens")] = Field(
        2048, ge=1, le=16777216, description="Tokens whose logits exist at once; bounds the loss's memory."
    )
    preferences: Literal["dpo", "ipo", "simpo", "orpo", "kto"] = Field(
        "dpo",
        description="Of preferences: the loss. dpo, ipo and kto compare with the model as it was, the others do not.",
    )
    beta: Annotated[float, Unit("ratio")] = Field(
        0.1,
        gt=0,
        le=100,
        description="Of preferences: what a difference counts; with dpo, ipo, kto, how close to what it was it stays.",
    )
    margin: Annotated[float, Unit("ratio")] = Field(
        0.0, ge=0, le=100, description="Of preferences with simpo: how far ahead the chosen answer is to be."
    )
    label_smoothing: Annotated[float, Unit("ratio")] = Field(
        0.0, ge=0, lt=0.5, description="Of preferences with dpo: the share of pairs that may be the wrong way round."
    )
    chosen_weight: Annotated[float, Unit("ratio")] = Field(
        0.0, ge=0, le=100, description="Of preferences: weight of the chosen answer's mean cross entropy beside theirs."
    )
    good_weight: Annotated[float, Unit("ratio")] = Field(
        1.0, gt=0, le=100, description="Of preferences with kto: what a good answer counts."
    )
    bad_weight: Annotated[float, Unit("ratio")] = Field(
        1.0, gt=0, le=100, description="Of preferences with kto: what a bad answer counts."
    )

    @property
    def compares(self) -> bool:
        """Whether the loss of answers is about what has changed since the weights that the run began with."""
        return self.preferences in ("dpo", "ipo", "kto")
