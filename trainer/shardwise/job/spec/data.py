"""The `training.data` section: which text is trained on, and how it becomes tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field

from shardwise.job.spec.base import Count, FilledFrom, Label, PathText, Unit
from shardwise.protocol.message import MAX_INT32
from shardwise.protocol.strict_model import StrictModel

_SourceName = Annotated[str, Field(min_length=1, max_length=63)]  # the key of a map has no pattern in a CRD
TokenText = Annotated[str, Field(min_length=1, max_length=256)]
TextField = Annotated[
    str, Field(min_length=1, max_length=256, description="Key or column of the text in a JSONL, Parquet or Arrow file.")
]

ChatTemplate = Annotated[
    Literal["chatml", "llama3"] | None,
    Field(description="How conversations in messages become text; only their answers are learned. Left out, text."),
]

Preferences = Annotated[
    bool, Field(description="Whether each line has two answers, one chosen and one rejected, and the loss is of pairs.")
]

Labels = Annotated[
    bool, Field(description="Whether each line has one answer and a label, true for a good one; for preferences: kto.")
]


class Source(StrictModel):
    """Documents from files of one kind, with a share in the mixture."""

    name: Label = Field(description="What metrics and messages call the source; unique.")
    paths: tuple[PathText, ...] = Field(
        strict=False,
        min_length=1,
        max_length=1024,
        description="Files, globs, URLs, folders of `datasets`; .gz, .zst too; or one token store.",
    )
    weight: Annotated[float | None, Unit("ratio"), FilledFrom("1, unless there are epochs")] = Field(
        None, ge=0, le=1e6, description="Share in the mixture, relative to the other sources'."
    )
    epochs: Annotated[float | None, Unit("passes")] = Field(
        None, gt=0, le=1e6, description="Passes over the source in the whole run, in place of a weight."
    )
    text_field: TextField = "text"
    chat_template: ChatTemplate = None
    preferences: Preferences = False
    labels: Labels = False
    prompts: bool = Field(
        False, description="Whether each line has a prompt that training.reinforcement has the model complete."
    )
    leave_out: tuple[Annotated[int, Field(ge=0, le=MAX_INT32)], ...] = Field(
        (), strict=False, max_length=1024, description="Sequences, counted from 0, that are not trained on."
    )

    @property
    def is_judged(self) -> bool:
        """Whether its answers are good or bad, in pairs or by themselves, and their loss is one of preferences."""
        return self.preferences or self.labels

    @property
    def judged_words(self) -> str:
        """What its lines are called, if they are no text."""
        if self.prompts:
            return "prompts"
        return "answers with labels" if self.labels else "pairs of answers"


class EvaluationSet(StrictModel):
    """Text that is evaluated on and never trained on, in files of its own."""

    name: Label = Field(description="What metrics and messages call the set; unique.")
    paths: tuple[PathText, ...] = Field(
        strict=False, min_length=1, max_length=1024, description="As those of a source in data.train."
    )
    text_field: TextField = "text"
    chat_template: ChatTemplate = None
    preferences: Preferences = False
    labels: Labels = False
    questions: bool = Field(
        False,
        description="Whether each line is a question with choices; it is counted how often the likeliest is right.",
    )
    prompts: bool = Field(
        False, description="Whether each line has a prompt; the mean reward of its completions is measured."
    )
    batches: Annotated[int | None, Unit("batches"), FilledFrom("evaluation.batches")] = Field(
        None, ge=1, le=100000, description="Batches of one evaluation, at most; the whole set has no more."
    )

    @property
    def is_judged(self) -> bool:
        """As of a source."""
        return self.preferences or self.labels


class MixturePhase(StrictModel):
    """Weights that replace all earlier ones from a step on."""

    from_step: Annotated[Count, Unit("step")] = Field(
        description="Steps before the phase; ascending from phase to phase."
    )
    weights: dict[_SourceName, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        max_length=64, description="Weight of each source by its name; a source that is left out has 0."
    )


class Data(StrictModel):
    """The training mixture and its tokenizer."""

    train: tuple[Source, ...] = Field(
        strict=False, min_length=1, max_length=64, description="The sources of the mixture."
    )
    phases: tuple[MixturePhase, ...] = Field(
        (), strict=False, max_length=16, description="Later weights of the mixture, by the step from which they hold."
    )
    dedup: Literal["exact"] | None = Field(
        None, description="exact: of equal documents only the first is used, over all sources in their order."
    )
    store: PathText | None = Field(
        None,
        description="Folder or URL of token stores, which the hosts of the run make together; left out, each its own.",
    )
    tokenizer: PathText = Field(
        "byte", description="byte (256 bytes and end-of-text), or the path or URL of a tokenizer.json."
    )
    begin_token: TokenText | None = Field(
        None, description="A token of tokenizer.json that begins each document; left out, none."
    )
    end_token: Annotated[TokenText | None, FilledFrom("<|endoftext|>, </s>, <eos> or <|end_of_text|>")] = Field(
        None, description="A token of tokenizer.json that ends each document."
    )
    attend_across: Literal["stream", "document"] = Field(
        "stream", description="Whether attention sees the whole sequence, or only the token's own document."
    )
    held_out: Annotated[float, Unit("share")] = Field(
        0.0, ge=0, le=0.5, description="Documents kept out of training for evaluation."
    )
    leave_out: tuple[Annotated[int, Field(ge=0, le=MAX_INT32)], ...] = Field(
        (), strict=False, max_length=256, description="Batches, counted from 0, that are not trained on."
    )

    def as_text(self) -> Self:
        """Return the same as if its sources were text."""
        plain = {"preferences": False, "labels": False, "prompts": False}
        return self.model_copy(update={"train": tuple(source.model_copy(update=plain) for source in self.train)})
