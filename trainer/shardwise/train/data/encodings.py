"""Which encoding the documents of a source have: by its tokenizer, its chat template, and what its lines are."""

from typing import NamedTuple

from shardwise.job.spec.data import Source
from shardwise.train.data.chat import ChatTokenizer
from shardwise.train.data.prompts import PromptEncoding
from shardwise.train.data.tokenizer import Encoding, Tokenizer, load_tokenizer


class EncodingName(NamedTuple):
    """An encoding as a job and a source name it, to be loaded in another process."""

    path: str
    begin: str | None
    end: str | None
    template: str | None = None
    prompts: bool = False

    def of(self, source: Source) -> "EncodingName":
        """Return the name of a source's."""
        return self._replace(template=source.chat_template, prompts=source.prompts)

    def load(self) -> Encoding:
        """Return it; DataError if it cannot be used."""
        tokenizer = in_template(load_tokenizer(self.path, begin=self.begin, end=self.end), self.template)
        return PromptEncoding(tokenizer) if self.prompts else tokenizer


def in_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """Return the job's tokenizer, or that of conversations in this template."""
    return tokenizer if template is None else ChatTokenizer(tokenizer, template)


def encoding_of(tokenizer: Tokenizer, source: Source) -> Encoding:
    """Return the encoding of a source's documents."""
    found = in_template(tokenizer, source.chat_template)
    return PromptEncoding(found) if source.prompts else found
