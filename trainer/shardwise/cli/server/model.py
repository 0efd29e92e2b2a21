"""The model that is served: its name, and requests as texts for its rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shardwise.cli.asked import Asked, Task, to_answer, to_go_on
from shardwise.cli.server.engine import MOST_WAITING
from shardwise.cli.server.requests import ChatRequest, CompletionRequest, RefusedError, Request, refused, shown
from shardwise.cli.server.texts import News, Text
from shardwise.protocol.errors import DataError, UsageError
from shardwise.train.data.chat import ChatTokenizer, messages_of
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.generation import refuse_prompt
from shardwise.train.state import Program

_FEW_TOKENS = 16
"""Of a completion that does not say how many, as OpenAI's."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A run's model, and how texts become its tokens and back."""

    name: str
    program: Program
    tokenizer: Tokenizer
    chat: ChatTokenizer | None
    """None: the run was trained on no conversations."""
    has_scores: bool = False
    """Whether the programs that say how likely tokens are were compiled."""

    def check_name(self, given: str | None) -> None:
        """Raise RefusedError unless the model that is asked for is this one, or any."""
        if given not in (None, self.name):
            words = f"model: given {given!r}, expected {self.name!r}, the one that is served here"
            raise RefusedError(404, words, param="model", code="model_not_found")

    def texts(self, request: Request, tell: Callable[[News | Exception], None]) -> list[Text]:
        """Return the texts that a request asks for: as many of each prompt as it says, those of a prompt together.

        Raises:
            RefusedError: it asks for another model, or for what the model cannot do.

        """
        self.check_name(request.model)
        try:
            task, num_tokens = self._task(request)
            wish = request.wish(num_tokens, task.end)
        except UsageError as error:
            raise refused(error) from error
        count = request.n or 1
        if (asks := len(task.asked) * count) > MOST_WAITING:
            raise RefusedError(
                400, f"given {len(task.asked)} prompts and n {count}, {asks} texts; expected at most {MOST_WAITING}"
            )
        is_scored = isinstance(request, CompletionRequest) and request.logprobs is not None
        if is_scored:
            self._check_scores(max(len(asked.tokens) for asked in task.asked), num_tokens)
        make = partial(Text, stops=task.stops, ends=task.ends, decode=self.tokenizer.decode, is_scored=is_scored)
        return [
            make(index, asked, replace(wish, draw=index), tell=tell)
            for index, asked in enumerate(asked for asked in task.asked for _ in range(count))
        ]

    def _check_scores(self, longest: int, num_tokens: int) -> None:
        """Raise RefusedError unless the likelihoods of texts that are so long can be told."""
        most = self.program.config.seq_len + 1  # nothing is asked about what follows the last
        if not self.has_scores:
            words = "logprobs: this server was started without --logprobs, so it knows none"
            raise RefusedError(400, words, param="logprobs")
        if longest + num_tokens > most:
            words = f"logprobs: given a prompt of {longest} tokens and {num_tokens} to make, expected {most} at most"
            raise RefusedError(400, words, param="logprobs")

    def _task(self, request: Request) -> tuple[Task, int]:
        """Return what is asked, and how many tokens of each at most."""
        if isinstance(request, ChatRequest):
            most = request.max_completion_tokens or request.max_tokens or self.program.config.seq_len
            return self._conversation(request), most
        assert isinstance(request, CompletionRequest), "there are two kinds"
        if request.stream and (request.echo or request.logprobs is not None):
            words = "stream: given true with echo or logprobs, which only whole answers have; expected false"
            raise RefusedError(400, words, param="stream")
        return self._beginnings(request), request.max_tokens or _FEW_TOKENS

    def _conversation(self, request: ChatRequest) -> Task:
        if self.chat is None:
            words = "this model was trained on no conversations; ask /v1/completions, or serve with --chat-template"
            raise RefusedError(400, words)
        try:
            messages = messages_of({"messages": [_known_message(message) for message in request.messages]}, "messages")
        except DataError as error:
            raise RefusedError(400, str(error), param="messages") from error
        return to_answer(self.chat, [messages], request.stops)

    def _beginnings(self, request: CompletionRequest) -> Task:
        """Return the task of going on with a request's prompts, which are texts or tokens."""
        task = to_go_on(self.tokenizer, (), request.stops)
        return task._replace(
            asked=[self._beginning(prompt) for prompt in _prompts("" if request.prompt is None else request.prompt)]
        )

    def _beginning(self, prompt: Any) -> Asked:
        is_text = isinstance(prompt, str)
        tokens = self.tokenizer.prompt(prompt) if is_text else prompt
        refuse_prompt(self.program, tokens)
        return Asked(tokens, prompt if is_text else self.tokenizer.decode(tokens), {}, tokens)


def _prompts(given: Any) -> list[Any]:
    """Return the prompts of a request, each a text or tokens; RefusedError if it is something else."""
    prompts = given if isinstance(given, list) and not (given and _are_tokens(given)) else [given]
    if not prompts or not all(isinstance(prompt, str) or _are_tokens(prompt) for prompt in prompts):
        words = f"prompt: given {shown(given)}, expected a text, a list of tokens, or a list of such, with one at least"
        raise RefusedError(400, words, param="prompt")
    return prompts


def _known_message(message: Any) -> Any:
    """Return a message as a source of conversations has it: content in parts of text is joined, developers are system.

    What is none of these is returned as it is given, and refused in words as any other.
    """
    if not isinstance(message, dict):
        return message
    known = message | ({"role": "system"} if message.get("role") == "developer" else {})
    parts = message.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return known
    texts = [part.get("text") for part in parts]
    return known | {"content": "".join(texts)} if all(isinstance(text, str) for text in texts) else known


def _are_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)
