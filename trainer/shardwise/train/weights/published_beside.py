"""What an export keeps of the published files beside its run's tokenizer, where they are those of the same model.

A run trains on sequences that are shorter than its model's positions, and its job names one token that ends a text;
the model that it began with can do more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family
from shardwise.train.weights.locate import read_json
from shardwise.train.weights.reading import CONFIG_FILE
from shardwise.train.weights.tokenizer_files import GENERATION_FILE, Ids

_SIZES = ("vocab_size", "embed_size", "num_layers", "num_heads")
"""The fields by which a config.json is taken for that of the same model."""


@dataclass(frozen=True, kw_only=True)
class PublishedBeside:
    """The objects of a config.json and of a generation_config.json; empty where there is none of this model."""

    config: Mapping[str, Any]
    generation: Mapping[str, Any]

    @classmethod
    def of(cls, tokenizer: Path | None, family: Family, config: GptConfig) -> "PublishedBeside":
        """Read what lies beside a tokenizer.json; DataError for a file that is no JSON object."""
        found, generation = (
            read_json(tokenizer.parent / name) if tokenizer and (tokenizer.parent / name).exists() else {}
            for name in (CONFIG_FILE, GENERATION_FILE)
        )
        names = _names(family)
        if any(found.get(names[field]) != getattr(config, field) for field in _SIZES):
            return cls(config={}, generation={})
        return cls(config=found, generation=generation)

    def positions(self, family: Family, config: GptConfig) -> dict[str, int]:
        """Return the key of the model's positions if there are more of them than the run's sequences have.

        A table of learned positions is as long as it is.
        """
        name = _names(family)["seq_len"]
        published = self.config.get(name)
        if config.position != "rotary" or not isinstance(published, int) or published <= config.seq_len:
            return {}
        return {name: published}

    def tokens(self, begin: int | None, ends: Sequence[int]) -> dict[str, Ids]:
        """Return the ids that begin and end a text: those given first, then the published ones."""
        published = [_ids(file.get("eos_token_id")) for file in (self.generation, self.config)]
        all_ends = list(dict.fromkeys([*ends, *(each for ids in published for each in ids)]))
        begins = [_ids(file.get("bos_token_id")) for file in (self.generation, self.config)]
        first = next((each for ids in begins for each in ids), None) if begin is None else begin
        return {"bos_token_id": first, "eos_token_id": all_ends if len(all_ends) > 1 else next(iter(all_ends), None)}


def _names(family: Family) -> dict[str, str]:
    return {**{key.field: key.name for key in family.keys}, "num_heads": family.heads_key}


def _ids(value: Any) -> list[int]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, int)]
