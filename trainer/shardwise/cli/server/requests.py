"""What is asked over HTTP, in the form of OpenAI's API: checked, field by field, and refused by name.

What the API has and a model here has not is taken at the value that changes nothing.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from shardwise.protocol.errors import UsageError
from shardwise.train.generation import MOST_TOKENS, Wish
from shardwise.train.sampling import Sampling
from shardwise.train.scoring import MOST_LIKELY

MOST_STOPS = 16
MOST_STOP_LENGTH = 1_000
MOST_TEXTS = 128
"""Of one prompt."""
_MOST_SHOWN = 80
_MOST_LEVELS = 32
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "frequency_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "parallel_tool_calls": (None, True, False),
    "presence_penalty": (None, 0, 0.0),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}

Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_LENGTH)]


def _as_list(given: Any) -> Any:
    """Return a text as a list of it, so that what is wrong with one of many is said of that one."""
    if not isinstance(given, str | list):
        raise PydanticCustomError("stop", "expected a text or a list of texts")
    return [given] if isinstance(given, str) else given


Stops = Annotated[list[Stop], Field(max_length=MOST_STOPS), BeforeValidator(_as_list)]


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None


class Request(BaseModel):
    """What both kinds of requests have; null is what is not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        return self.stop or []

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with how many tokens there were."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def wish(self, num_tokens: int, end: int) -> Wish:
        """Return what is asked of each text, of which `end` is the token that ends it; draws are the caller's.

        Raises:
            UsageError: a setting is out of range.

        """
        temperature = 1.0 if self.temperature is None else self.temperature
        sampling = Sampling(temperature=temperature, top_k=self.top_k, top_p=self.top_p)
        seed = secrets.randbits(64) if self.seed is None else self.seed
        return Wish(num_tokens=num_tokens, sampling=sampling, seed=seed, stop=end)


class CompletionRequest(Request):
    """`POST /v1/completions`."""

    prompt: Any = None
    """A text, tokens, or a list of such; without it a new document begins."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELY)] | None = None


class ChatRequest(Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Any], Field(min_length=1)]
    max_completion_tokens: Count | None = None


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """Take what is said of it."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def content(self) -> dict[str, Any]:
        """What the answer holds."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


R = TypeVar("R", bound=Request)


def read(kind: type[R], body: bytes) -> R:
    """Return the request that a body holds; RefusedError if it is none, or asks for what is not there."""
    fields = _parsed(body)
    if not isinstance(fields, dict):
        raise RefusedError(400, f"the body is a {type(fields).__name__}, expected an object")
    for name, neutral in _NEUTRAL.items():
        if name not in fields or name in kind.model_fields:
            continue
        given = fields.pop(name)
        if not any(given == value and type(given) is type(value) for value in neutral):
            known = " or ".join(json.dumps(value) for value in neutral)
            raise RefusedError(400, f"{name}: given {shown(given)}; this server knows {known} alone", param=name)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refused(error, kind) from error


def _parsed(body: bytes) -> Any:
    """Return the JSON of a body, of which every part can be written as JSON again, in UTF-8."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is no JSON ({error}), expected an object") from error
    if _is_deep(parsed):
        raise RefusedError(400, f"the body is nested too deep, expected at most {_MOST_LEVELS} levels")
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RefusedError(400, "the body has half a surrogate pair, expected text") from error
    return parsed


def _is_deep(value: Any) -> bool:
    """Return whether a value has more levels than any request needs; with very many it could not be written again."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for some in inner for each in some]
    return any(isinstance(each, dict | list) for each in level)


def refused(error: UsageError) -> RefusedError:
    """Return how a setting out of range is refused."""
    name = str(error).partition(":")[0].replace("-", "_")
    return RefusedError(400, str(error), param=name if name in CompletionRequest.model_fields else None)


def _refused(error: ValidationError, kind: type[Request]) -> RefusedError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        known = ", ".join(sorted(kind.model_fields))
        return RefusedError(400, f"{name}: this server has no such field, expected some of {known}", param=name)
    if first["type"] == "missing":
        return RefusedError(400, f"{name}: not given, expected it", param=name)
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    return RefusedError(400, f"{where}: given {shown(first['input'])}; {first['msg']}", param=name)


def shown(value: Any) -> str:
    """Return a value of a request as an error says it: JSON, and not too long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."
